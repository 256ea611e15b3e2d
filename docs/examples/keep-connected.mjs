// Keeps a node of js-waku connected to one gateway.
//
// The SDK (@waku/sdk 0.0.36) dials an address once. When its only node goes away, it never takes it back by itself, and
// its subscriptions end with the connection. So an application dials again, as long as it wants messages. The SDK then
// renews the subscriptions. What was sent in the meantime is history: ask for it each time `onConnected` is called.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30_000;
const SERVICES = ["filter", "store", "lightpush"];
const SERVICES_WAIT_MS = 10_000;

// Dial until the signal is aborted. `onConnected` and `onLost` are called each time.
export async function keepConnected(node, address, { onConnected, onLost, signal }) {
  const peer = address.split("/p2p/").at(-1);
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    const over = new AbortController();
    const gone = new Promise((resolve) => {
      node.libp2p.addEventListener("peer:disconnect", (event) => `${event.detail}` === peer && resolve(), over);
      signal.addEventListener("abort", resolve, over);
    });
    try {
      await node.dial(address);
      await node.waitForPeers(SERVICES, SERVICES_WAIT_MS);
      wait = FIRST_WAIT_MS;
      onConnected();
      await gone;
      onLost();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    } finally {
      over.abort();
    }
  }
}
