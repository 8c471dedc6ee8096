// One job for npm's ali-ons: `node client.js ADDRESS JOB`. The job and the lines that it prints are described in ../README.md.
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');
const fs = require('fs');
const http = require('http');

const [address, text] = process.argv.slice(2);
const job = JSON.parse(text);
const silent = { debug() {}, info() {}, warn: console.error, error: console.error };
// The client wants to look up its name server by HTTP; with `nameSrv` it does not.
const common = {
  nameSrv: address, accessKeyId: 'x', accessKeySecret: 'x', logger: silent, httpclient: http, clientIP: '127.0.0.1',
};

function say(what, value) {
  fs.writeSync(1, JSON.stringify({ [what]: value }) + '\n'); // a write that an exit cannot cut off
}

async function send() {
  const producer = new Producer({ ...common, producerGroup: 'node-senders' });
  producer.on('error', error => console.error(error));
  await producer.ready();
  for (const each of job.messages) {
    const message = new Message(job.topic, each.tag || '', each.body);
    message.keys = [ each.body ];
    if (each.delay) message.delayTimeLevel = each.delay;
    message.shardingKey = each.key;
    const result = await producer.send(message);
    say('sent', {
      body: each.body, queue: result.messageQueue.queueId, offset: Number(result.queueOffset), id: result.msgId,
    });
  }
  await producer.close();
}

async function consume() {
  const failing = new Set(job.fail);
  const consumer = new Consumer({
    ...common,
    consumerGroup: job.group,
    isBroadcast: job.broadcast,
    consumeFromWhere: job.from_last ? 'CONSUME_FROM_LAST_OFFSET' : 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', error => console.error(error));
  consumer.subscribe(job.topic, job.tags, async message => {
    const body = message.body.toString();
    say('got', {
      body, queue: message.queueId, offset: Number(message.queueOffset), attempts: message.reconsumeTimes,
    });
    if (failing.delete(body)) throw new Error('asked to fail');
  });
  await consumer.ready();
  say('ready', true);
  await new Promise(resolve => process.stdin.resume().on('end', resolve));
  await consumer.close();
}

async function main() {
  if (job.do === 'send' && !job.trace) await send();
  else if (job.do === 'consume' && !job.orderly) await consume();
  else say('unsupported', job.orderly ? 'orderly' : job.do);
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
