// A whole node of js-libp2p: `node peer.mjs MUXERS KEY [ADDRESS]`, MUXERS as in yamux,mplex, KEY as in Ed25519.
//
// With ADDRESS it dials it: it pings, asks who is there, has bytes sent back on /echo/1.0.0 and is refused on /none/1.0.0. It says on stdout what it found, as JSON.
// Without, it listens on loopback, says on stdout where, and ends when its stdin does. In both roles it sends back what comes on /echo/1.0.0.
import { generateKeyPair } from "@libp2p/crypto/keys";
import { identify } from "@libp2p/identify";
import { mplex } from "@libp2p/mplex";
import { ping } from "@libp2p/ping";
import { tcp } from "@libp2p/tcp";
import { noise } from "@chainsafe/libp2p-noise";
import { yamux } from "@chainsafe/libp2p-yamux";
import { multiaddr } from "@multiformats/multiaddr";
import { createLibp2p } from "libp2p";

// What Node.js has from 22 on, and these packages want.
Promise.withResolvers ??= function () {
  const all = {};
  all.promise = new Promise((resolve, reject) => Object.assign(all, { resolve, reject }));
  return all;
};

const ECHO = "/echo/1.0.0";
const BYTES = 1000;
const [, , muxers, key, address] = process.argv;
const node = await createLibp2p({
  privateKey: await generateKeyPair(key, key === "RSA" ? 2048 : undefined),
  addresses: { listen: address ? [] : ["/ip4/127.0.0.1/tcp/0"] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  connectionManager: { inboundConnectionThreshold: Infinity },
  streamMuxers: muxers.split(",").map((name) => ({ yamux, mplex })[name]()),
  services: { identify: identify({ runOnConnectionOpen: false }), ping: ping() },
});
await node.handle(ECHO, ({ stream }) => stream.sink(stream.source).catch(() => {}));

if (!address) {
  console.log(String(node.getMultiaddrs()[0]));
  process.stdin.resume();
  process.stdin.on("end", () => process.exit(0));
} else {
  const connection = await node.dial(multiaddr(address));
  await node.services.ping.ping(connection.remoteAddr);
  const { agentVersion, protocols } = await node.services.identify.identify(connection);
  const stream = await connection.newStream(ECHO);
  await stream.sink([new Uint8Array(BYTES).map((_, at) => at % 251)]);
  let echoed = 0;
  for await (const piece of stream.source) for (const byte of piece.subarray()) echoed += byte === echoed % 251;
  const refused = await connection.newStream("/none/1.0.0").then(() => "", (error) => error.name);
  const found = { me: String(node.peerId), you: String(connection.remotePeer), muxer: connection.multiplexer, agentVersion, protocols, echoed, refused };
  await connection.close();
  await node.stop();
  console.log(JSON.stringify(found));
  process.exit(0);
}
