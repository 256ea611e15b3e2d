// One side of a connection with the muxers of js-libp2p: `node oracle.mjs mplex|yamux inbound|outbound SOCKET [SIZES]`.
//
// It connects to the socket, where bytes of the muxer go both ways. As the listener ("inbound") it sends back what comes on each stream, then closes its
// half. As the dialer ("outbound") it opens a stream for each of SIZES, [n, ..], at once, sends as many bytes, closes its half and reads; then it opens one more and
// resets it. It ends when all is read, and says on stdout how many bytes of each stream came back as they were sent: [n, ..].
import { createConnection } from "node:net";
import { mplex } from "@libp2p/mplex";
import { yamux } from "@chainsafe/libp2p-yamux";

const [, , kind, direction, path, sizes] = process.argv;
const silent = Object.assign(() => {}, { trace() {}, error() {}, enabled: false, newScope: () => silent });
const components = { logger: { forComponent: () => silent } };
const socket = createConnection(path);
socket.on("close", () => process.exit(0));

const echo = (stream) => stream.sink(stream.source).catch(() => {});
const factory = kind === "mplex" ? mplex() : yamux();
const muxer = factory(components).createStreamMuxer({ direction, onIncomingStream: echo, log: silent });

async function* received() {
  for await (const piece of socket) yield new Uint8Array(piece);
}

async function send() {
  for await (const piece of muxer.source) {
    if (!socket.write(piece.subarray())) await new Promise((resolve) => socket.once("drain", resolve));
  }
  socket.end();
}

async function ask(size, seed) {
  const data = new Uint8Array(size).map((_, at) => (at * 7 + seed) & 255);
  const stream = await muxer.newStream();
  const sent = stream.sink([data].filter((piece) => piece.length > 0));
  let at = 0;
  for await (const piece of stream.source) {
    for (const byte of piece.subarray()) if (byte !== data[at++]) return -1;
  }
  await sent;
  return at;
}

const done = Promise.all([send(), muxer.sink(received())]);
if (direction === "outbound") {
  console.log(JSON.stringify(await Promise.all(JSON.parse(sizes).map(ask))));
  const stream = await muxer.newStream();
  stream.sink((async function* () { yield new Uint8Array(300); await new Promise(() => {}); })()).catch(() => {});
  await new Promise((resolve) => setTimeout(resolve, 50));
  stream.abort(new Error("as the test likes"));
  await new Promise((resolve) => setTimeout(resolve, 50));
  await muxer.close();
}
await done;
