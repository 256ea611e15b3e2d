// A light client of js-waku that does what it is told: one JSON object per line on stdin, {id, do, ...}; one per line on
// stdout: {id, result} or {id, error}, and {event: ...} for what nobody asked for: a push, or a connection that comes or goes.
//
// node light_client.mjs [--tcp] [--keep-alive-ms NUMBER]
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { yamux } from "@chainsafe/libp2p-yamux";
import { tcp } from "@libp2p/tcp";
import { createLightNode } from "@waku/sdk";
import { follow } from "../../../docs/examples/follow.mjs";

const CLUSTER = 1;
const SHARDS = 8;

const { values: flags } = parseArgs({ options: { tcp: { type: "boolean" }, "keep-alive-ms": { type: "string" } } });

const hex = (bytes) => Buffer.from(bytes ?? []).toString("hex");
const bytes = (text) => Uint8Array.from(Buffer.from(text, "hex"));
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

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

const node = await createLightNode({
  networkConfig: { clusterId: CLUSTER, numShardsInCluster: SHARDS },
  libp2p: {
    filterMultiaddrs: false, // a WebSocket without TLS
    hideWebSocketInfo: true,
    ...(flags.tcp ? { transports: [tcp()], streamMuxers: [yamux()] } : {})
  },
  filter: flags["keep-alive-ms"] ? { keepAliveIntervalMs: Number(flags["keep-alive-ms"]) } : undefined,
  defaultBootstrap: false
});
const decoders = new Map();
const decoder = (topic) => decoders.get(topic) ?? decoders.set(topic, decoderOf(node, topic)).get(topic);
const stopping = new AbortController();

async function pages(topics, options) {
  const found = [];
  for await (const page of node.store.queryGenerator(topics.map(decoder), options)) {
    found.push((await Promise.all(page)).map((message) => message?.shown ?? null));
  }
  return found;
}

const commands = {
  async dial({ address }) {
    await node.dial(address);
    await node.waitForPeers(["filter", "store", "lightpush"], 10_000);
    return node.libp2p.getConnections().map((each) => each.multiplexer);
  },
  async follow({ address, topic, since }) {
    const onMessage = (message) => say({ event: "message", ...message.shown });
    const onState = (event) => say({ event });
    void follow(node, address, decoder(topic), { since: new Date(since), onMessage, onState, signal: stopping.signal });
  },
  async subscribe({ topics }) {
    return node.filter.subscribe(topics.map(decoder), (message) => say({ event: "message", ...message.shown }));
  },
  async unsubscribe({ topics }) {
    return node.filter.unsubscribe(topics.map(decoder));
  },
  // Each page; `start` and `end` in ms, `cursor` a hash.
  async query({ topics, start, end, forward = true, limit, cursor }) {
    return pages(topics, {
      paginationForward: forward,
      timeStart: start === undefined ? undefined : new Date(start),
      timeEnd: end === undefined ? undefined : new Date(end),
      paginationLimit: limit,
      paginationCursor: cursor === undefined ? undefined : bytes(cursor)
    });
  },
  async queryHashes({ topics, hashes, includeData = true }) {
    return pages(topics, { messageHashes: hashes.map(bytes), includeData });
  },
  async send({ topic, payload, timestamp, legacy = false }) {
    const encoder = node.createEncoder({ contentTopic: topic });
    const message = { payload: bytes(payload), timestamp: timestamp === undefined ? undefined : new Date(timestamp) };
    const result = await node.lightPush.send(encoder, message, { autoRetry: false, useLegacy: legacy });
    return { successes: result.successes.length, failures: result.failures.map(({ error }) => `${error}`) };
  },
  async isConnected() {
    return node.libp2p.getConnections().length > 0;
  },
  async stop() {
    stopping.abort();
    await node.stop();
    setImmediate(() => process.exit(0));
  }
};

say({ event: "ready" });
for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: name, ...given } = JSON.parse(line);
  // Not awaited: a client does several things at once.
  commands[name](given).then(
    (result) => say({ id, result: result ?? null }),
    (error) => say({ id, error: `${error?.stack ?? error}` })
  );
}
process.exit(0); // whoever told it what to do is gone
