// A light client of js-waku that does what it is told: one JSON object per line on stdin, {id, do, ...}; one per line on
// stdout: {id, result} or {id, error}, and {event: "message", ...} for each push.
import { createInterface } from "node:readline";
import { createLightNode } from "@waku/sdk";

const CLUSTER = 1;
const SHARDS = 8;

const hex = (bytes) => Buffer.from(bytes ?? []).toString("hex");
const bytes = (text) => Uint8Array.from(Buffer.from(text, "hex"));
const say = (value) => process.stdout.write(`${JSON.stringify(value, (_, v) => (typeof v === "bigint" ? `${v}` : v))}\n`);

// What the SDK's decoder does not take: messages of version 1, whose payload the application decrypts (26/WAKU2-PAYLOAD).
function decoderOf(node, contentTopic) {
  const plain = node.createDecoder({ contentTopic });
  const shown = async (pubsubTopic, message) => {
    const decoded = await plain.fromProtoObj(pubsubTopic, { ...message, version: undefined });
    return Object.assign(decoded, { shown: {
      pubsubTopic,
      topic: message.contentTopic,
      payload: hex(message.payload),
      version: message.version ?? null,
      timestamp: message.timestamp === undefined ? null : `${message.timestamp}`,
      meta: hex(message.meta),
      hash: decoded.hashStr
    } });
  };
  return { contentTopic, pubsubTopic: plain.pubsubTopic, fromWireToProtoObj: (wire) => plain.fromWireToProtoObj(wire), fromProtoObj: shown };
}

const addresses = process.argv.slice(2);
const node = await createLightNode({
  networkConfig: { clusterId: CLUSTER, numShardsInCluster: SHARDS },
  libp2p: { filterMultiaddrs: false, hideWebSocketInfo: true },
  defaultBootstrap: false
});
const decoders = new Map();
const decoder = (topic) => decoders.get(topic) ?? decoders.set(topic, decoderOf(node, topic)).get(topic);

const commands = {
  async dial({ address }) {
    await node.dial(address);
    await node.waitForPeers(["filter", "store", "lightpush"], 10_000);
    return node.isConnected();
  },
  async hangUp({ address }) {
    return node.hangUp(address);
  },
  async subscribe({ topics }) {
    return node.filter.subscribe(topics.map(decoder), (message) => say({ event: "message", ...message.shown }));
  },
  async unsubscribe({ topics }) {
    return node.filter.unsubscribe(topics.map(decoder));
  },
  async query({ topics, start, end, forward = true, limit, cursor }) {
    const found = [];
    const options = { paginationForward: forward };
    if (start !== undefined) options.timeStart = new Date(start);
    if (end !== undefined) options.timeEnd = new Date(end);
    if (limit !== undefined) options.paginationLimit = limit;
    if (cursor !== undefined) options.paginationCursor = bytes(cursor);
    for await (const page of node.store.queryGenerator(topics.map(decoder), options)) {
      found.push((await Promise.all(page)).map((message) => message?.shown ?? null));
    }
    return found;
  },
  async queryHashes({ topics, hashes, includeData = true }) {
    const found = [];
    const options = { messageHashes: hashes.map(bytes), includeData };
    for await (const page of node.store.queryGenerator(topics.map(decoder), options)) {
      found.push((await Promise.all(page)).map((message) => message?.shown ?? null));
    }
    return found;
  },
  async send({ topic, payload, ephemeral = false, timestamp, legacy = false }) {
    const encoder = node.createEncoder({ contentTopic: topic, ephemeral });
    const message = { payload: bytes(payload) };
    if (timestamp !== undefined) message.timestamp = new Date(timestamp);
    const result = await node.lightPush.send(encoder, message, { autoRetry: false, useLegacy: legacy });
    return { successes: result.successes.length, failures: result.failures.map(({ error }) => `${error}`) };
  },
  async connections() {
    return node.libp2p.getConnections().map((each) => ({ peer: `${each.remotePeer}`, muxer: each.multiplexer, status: each.status }));
  },
  async stop() {
    await node.stop();
    setImmediate(() => process.exit(0));
    return true;
  }
};

for (const address of addresses) await commands.dial({ address });
say({ event: "ready", peerId: `${node.peerId}` });

for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: name, ...given } = JSON.parse(line);
  // Not awaited: a client does several things at once.
  commands[name](given).then(
    (result) => say({ id, result: result ?? null }),
    (error) => say({ id, error: `${error?.stack ?? error}` })
  );
}
