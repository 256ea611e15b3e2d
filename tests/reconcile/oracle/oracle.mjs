// One side of a negentropy conversation by another implementation: JSON lines on stdin, answers on stdout.
//
//   {"items": [[timestamp, id], ..], "frame_bytes": n}   -> {}
//   {"begin": true}                                      -> {"message": hex}
//   {"receive": hex}                                     -> {"message": hex or null, "have": [id], "need": [id]}
//
// `node oracle.mjs [MODULE]`: nostr-tools, which has the initiator only and does not export this file, or a module like js/Negentropy.js of the
// reference, which has both.
import { createInterface } from "node:readline";

const { Negentropy, NegentropyStorageVector } = await import(process.argv[2] ?? "./node_modules/nostr-tools/lib/esm/nip77.js");
let side;

async function answer(asked) {
  if (asked.items) {
    const storage = new NegentropyStorageVector();
    for (const [timestamp, id] of asked.items) storage.insert(timestamp, id);
    storage.seal();
    side = new Negentropy(storage, asked.frame_bytes);
    return {};
  }
  if (asked.begin) return { message: await side.initiate() };
  const have = [], need = [];
  const message = await side.reconcile(asked.receive, (id) => have.push(id), (id) => need.push(id));
  return Array.isArray(message) ? { message: message[0], have: message[1], need: message[2] } : { message, have, need };
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answer(JSON.parse(line))));
}
