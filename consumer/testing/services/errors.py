"""The one error of the development services, and the remedies it names."""

from consumer.errors import ServicesError

__all__ = [
    "DOWN_FIRST",
    "INSTALL_SOMETHING",
    "SET_BOTH",
    "START_FIRST",
    "ServicesError",
]

SET_BOTH = "set both CONSUMER_AMQP_URL and CONSUMER_DATABASE_URL, or neither"
START_FIRST = "run `consumer services up`"
DOWN_FIRST = "run `consumer services down` first"
INSTALL_SOMETHING = (
    "install and start Docker with Compose; or `apt-get install rabbitmq-server postgresql`; "
    "or run `consumer services up --install` as root on Debian or Ubuntu; "
    "or set CONSUMER_AMQP_URL and CONSUMER_DATABASE_URL"
)
