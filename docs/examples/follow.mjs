// Follows one content topic through one gateway, for as long as the application runs.
//
// The SDK (@waku/sdk 0.0.36) dials an address once. When its only node goes away, it never takes it back by itself. So an
// application dials again. The SDK then renews its subscriptions, but does not say when, so they are made anew and waited
// for. Then comes the history of the time without pushes: what comes between the two comes twice, and is told apart by
// its hash.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30_000;
const SERVICES = ["filter", "store", "lightpush"];
const SERVICES_WAIT_MS = 10_000;
const ALLOWANCE_MS = 120_000; // clocks differ, and a message of Waku v1 may be under way for a minute

// Call `onMessage` with each message since a time (a Date), once, until the signal is aborted; `onState` with "connecting",
// "connected" once history is there, "lost", and "failed" with what went wrong.
export async function follow(node, address, decoder, { since, onMessage, onState, signal }) {
  const [, peer] = address.split("/p2p/");
  if (!peer) throw new Error("the address does not say who the gateway is: it must end in /p2p/...");
  const seen = new Set();
  const show = (message) => {
    if (message === undefined || seen.has(message.hashStr)) return; // not for us, or known
    seen.add(message.hashStr);
    onMessage(message);
  };

  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    const over = new AbortController();
    const aborted = new Promise((resolve) => signal.addEventListener("abort", resolve, over));
    const gone = new Promise((resolve) =>
      node.libp2p.addEventListener("peer:disconnect", (event) => `${event.detail}` === peer && resolve(), over)
    );
    onState("connecting");
    try {
      await node.dial(address);
      await node.waitForPeers(SERVICES, SERVICES_WAIT_MS);
      await node.filter.unsubscribe(decoder); // from the last time
      if (!(await node.filter.subscribe(decoder, show))) throw new Error("the gateway takes no subscription");
      await node.store.queryWithOrderedCallback([decoder], show, { timeStart: since });
      onState("connected");
      wait = FIRST_WAIT_MS;
      await Promise.race([gone, aborted]);
      since = new Date(Date.now() - ALLOWANCE_MS);
      onState("lost");
    } catch (error) {
      onState("failed", error);
    }
    // Not all clients of a gateway are to come back in the same moment.
    const pause = new Promise((resolve) => setTimeout(resolve, wait * (0.5 + Math.random())));
    await Promise.race([pause, aborted]);
    wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    over.abort();
  }
}
