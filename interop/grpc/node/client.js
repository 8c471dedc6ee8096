// RocketMQ's official Node client 5.x as a program, with the roles of client.py.
const readline = require('node:readline');
const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const silent = { info() {}, warn() {}, error() {}, debug() {}, log() {} };
const role = process.argv[2];
const options = Object.fromEntries(process.argv.slice(3).map((word) => {
  const at = word.indexOf('=');
  return [word.slice(0, at), word.slice(at + 1)];
}));

function say(what) {
  process.stdout.write(`${JSON.stringify(what)}\n`);
}

function configuration() {
  const given = { endpoints: options.server, namespace: '', logger: silent, sslEnabled: 'tls' in options };
  if (options.user) {
    given.sessionCredentials = { accessKey: options.user, accessSecret: options.secret };
  }
  return given;
}

function got(message) {
  const body = message.body.toString();
  say({
    got: body, key: message.messageGroup, attempt: message.deliveryAttempt, id: message.messageId, tag: message.tag,
    at: Date.now() / 1000,
  });
  return body;
}

const sleep = (seconds) => new Promise((resolve) => { setTimeout(resolve, seconds * 1000); });
const listed = (name) => new Set((options[name] || '').split(',').filter(Boolean));

function untilInputEnds() {
  return new Promise((resolve) => { process.stdin.on('end', resolve); process.stdin.resume(); });
}

async function send() {
  const producer = new Producer({ ...configuration(), topics: [options.topic] });
  await producer.startup();
  say({ ready: true });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const wanted = JSON.parse(line);
    try {
      const receipt = await producer.send({
        topic: options.topic, tag: wanted.tag, messageGroup: wanted.key, body: Buffer.from(wanted.body),
      });
      say({ sent: wanted.body, id: receipt.messageId });
    } catch (error) {
      say({ failed: wanted.body, why: String(error) });
    }
  }
  await producer.shutdown();
}

async function push() {
  const failing = listed('fail');
  const failed = new Set();
  const consumer = new PushConsumer({
    ...configuration(),
    consumerGroup: options.group,
    subscriptions: new Map([[options.topic, options.tags || '*']]),
    messageListener: {
      async consume(message) {
        const body = got(message);
        await sleep(Number(options.seconds || 0));
        if (failing.has(body) && (options.fails === 'always' || !failed.has(body))) {
          failed.add(body);
          return ConsumeResult.FAILURE;
        }
        say({ done: body, at: Date.now() / 1000 });
        return ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  say({ ready: true });
  await untilInputEnds();
  await consumer.shutdown();
}

async function simple() {
  const ignored = listed('ignore');
  const consumer = new SimpleConsumer({
    ...configuration(),
    consumerGroup: options.group,
    subscriptions: new Map([[options.topic, options.tags || '*']]),
    awaitDuration: Number(options.wait || 3) * 1000,
  });
  await consumer.startup();
  say({ ready: true });
  let stopping = false;
  untilInputEnds().then(() => { stopping = true; });
  while (!stopping) {
    for (const message of await consumer.receive(Number(options.batch || 3), Number(options.invisible || 10) * 1000)) {
      const body = got(message);
      if (ignored.delete(body)) {
        continue;
      }
      try {
        await consumer.ack(message);
        say({ done: body, at: Date.now() / 1000 });
      } catch (error) {
        say({ refused: body, why: String(error) });
      }
    }
  }
  await consumer.shutdown();
}

({ send, push, simple })[role]().then(
  () => { say({ ended: true }); process.exit(0); },
  (error) => { say({ why: String(error) }); process.exit(1); },
);
