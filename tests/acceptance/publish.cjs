// Publishes the webhook payloads with amqplib, each several times, in a random order.
//
//   node publish.cjs PAYLOADS_JSON COPIES SEED
//
// The broker's address is in CONSUMER_AMQP_URL; amqplib is found through NODE_PATH. A payload's
// message id is `webhook-` and its index. Ends with 0 once the broker has confirmed every message.
"use strict";

const { readFileSync } = require("node:fs");
const amqp = require("amqplib");

const EXCHANGE = "consumer.commands";
const TYPE = "github.webhook";

/** Uniform in [0, 1), the same for the same seed (mulberry32). */
function randomFrom(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

function shuffle(items, random) {
  for (let last = items.length - 1; last > 0; last--) {
    const other = Math.floor(random() * (last + 1));
    [items[last], items[other]] = [items[other], items[last]];
  }
  return items;
}

async function main(file, copies, seed) {
  const payloads = JSON.parse(readFileSync(file, "utf8"));
  const messages = payloads.flatMap((payload, index) => Array(copies).fill({ payload, index }));
  const connection = await amqp.connect(process.env.CONSUMER_AMQP_URL);
  const channel = await connection.createConfirmChannel();
  const returned = [];
  channel.on("return", (message) => returned.push(message.properties.messageId));
  for (const { payload, index } of shuffle(messages, randomFrom(seed))) {
    channel.publish(EXCHANGE, TYPE, Buffer.from(JSON.stringify(payload)), {
      contentType: "application/json",
      messageId: `webhook-${index}`,
      type: TYPE,
      persistent: true,
      mandatory: true,
    });
  }
  await channel.waitForConfirms();
  await connection.close();
  if (returned.length) throw new Error(`came back: ${returned}`);
  console.log(messages.length);
}

const [file, copies, seed] = process.argv.slice(2);
main(file, Number(copies), Number(seed)).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
