"""Settings of a deployment, from the environment (`CONSUMER_…`) or the command line."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from consumer.errors import ConfigurationError


def _seconds(value: object) -> object:
    """A bare number of seconds, as environments hold it, as a number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


Seconds = Annotated[timedelta, BeforeValidator(_seconds), Field(ge=timedelta(0))]
PositiveSeconds = Annotated[timedelta, BeforeValidator(_seconds), Field(gt=timedelta(0))]


_SHORTEST_LEASE = timedelta(seconds=15)


def lease(heartbeat: timedelta) -> timedelta:
    """A worker whose last heartbeat is older than this does not count as alive.

    Args:
        heartbeat: Time between heartbeats.
    """
    return max(_SHORTEST_LEASE, heartbeat * 3)


class Settings(BaseSettings):
    """Where the services are, and how a worker process behaves."""

    model_config = SettingsConfigDict(env_prefix="CONSUMER_", extra="ignore")

    amqp_url: SecretStr = Field(
        SecretStr(""), description="RabbitMQ, amqp:// or amqps://; several, comma-separated, are "
        "tried in turn.")
    amqp_url_file: Path | None = Field(
        None, description="A file that holds the broker's addresses, for credentials that rotate; "
        "read again at each reconnect.")
    database_url: SecretStr = Field(SecretStr(""), description="Postgres, postgresql://.")
    management_url: SecretStr = Field(
        SecretStr(""), description="RabbitMQ's management API, http://user:password@host:port; "
        "optional, for topology check and audit.")
    schema_name: str = Field("consumer", description="Postgres schema of the framework's tables.",
                             validation_alias="CONSUMER_SCHEMA")
    pooler: Literal["none", "transaction"] = Field(
        "none", description="`transaction` if a transaction-mode pooler stands before Postgres: "
        "prepared statements are switched off.")
    grace: Seconds = Field(timedelta(seconds=30), description="How long a drain may take.")
    heartbeat: PositiveSeconds = Field(
        timedelta(seconds=5), description="Between heartbeats of a worker; pauses are seen then.")
    publish_timeout: PositiveSeconds = Field(
        timedelta(seconds=30), description="Wait for a confirm; after it the outcome is unknown.")
    relay_interval: PositiveSeconds = Field(
        timedelta(seconds=1), description="Between sweeps of an idle outbox relay.")
    health_host: str = Field("127.0.0.1", description="Where /live, /ready and /metrics listen.")
    health_port: int = Field(
        0, ge=0, le=65535, description="Port of /live, /ready and /metrics; 0 takes a free one and "
        "logs it.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="`debug`, `info`, `warning` or `error`; the success of a single "
        "command is logged at `debug`.")
    log_format: Literal["json", "console"] = Field(
        "json", description="`json` lines, or `console` for people.")

    def amqp_urls(self) -> list[str]:
        """The broker's addresses.

        Raises:
            ConfigurationError: None is set, or the file cannot be read.
        """
        text = self.amqp_url.get_secret_value()
        if self.amqp_url_file is not None:
            try:
                text = self.amqp_url_file.read_text()
            except OSError as error:
                raise ConfigurationError(
                    f"CONSUMER_AMQP_URL_FILE cannot be read: {error.strerror}") from None
        urls = [url.strip() for url in text.split(",") if url.strip()]
        if not urls:
            raise ConfigurationError(
                "CONSUMER_AMQP_URL is not set",
                remedy='set it, or: consumer services up && eval "$(consumer services env)"')
        return urls

    def database(self) -> str:
        """The database's address.

        Raises:
            ConfigurationError: It is not set.
        """
        url = self.database_url.get_secret_value().strip()
        if not url:
            raise ConfigurationError(
                "CONSUMER_DATABASE_URL is not set",
                remedy='set it, or: consumer services up && eval "$(consumer services env)"')
        return url


def read_settings(**overrides: object) -> Settings:
    """The settings in force now.

    Raises:
        ConfigurationError: A value is not one; the message names the variable, never its value.
    """
    try:
        return Settings(**{k: v for k, v in overrides.items() if v is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        name = name if name.startswith("CONSUMER_") else f"CONSUMER_{name}"
        raise ConfigurationError(f"{name}: {first['msg']}") from None
