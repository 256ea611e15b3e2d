// The script of light-client.html: a client of js-waku in a browser, which shows a public chat of Waku v1.
//
// `make page` bundles it with the SDK, in dist/page. The address may say what to follow:
// light-client.html#gateway=MULTIADDR&chat=NAME
import { createLightNode } from "@waku/sdk";
import { keccak256 } from "@waku/message-encryption/crypto";
import { createDecoder, createEncoder } from "@waku/message-encryption/symmetric";
import { follow } from "./follow.mjs";

const CLUSTER = 1;
const SHARDS = 8;
const HISTORY_MS = 24 * 3600 * 1000;

const PASSWORD_ITERATIONS = 65_356; // of deployed clients of Waku v1
const KEY_BITS = 256;

const element = (id) => document.getElementById(id);
const utf8 = new TextEncoder();
const text = new TextDecoder();

// The content topic of a public chat: 23/WAKU2-TOPICS of a topic of 10/WAKU-USAGE.
function topicOf(chat) {
  const topic = keccak256(utf8.encode(chat)).slice(0, 4);
  return `/waku/1/0x${[...topic].map((byte) => byte.toString(16).padStart(2, "0")).join("")}/rfc26`;
}

// The key of a public chat, which is sealed with its name.
async function keyOf(chat) {
  const name = await crypto.subtle.importKey("raw", utf8.encode(chat), "PBKDF2", false, ["deriveBits"]);
  const how = { name: "PBKDF2", hash: "SHA-256", salt: new Uint8Array(), iterations: PASSWORD_ITERATIONS };
  return new Uint8Array(await crypto.subtle.deriveBits(how, name, KEY_BITS));
}

function show(message) {
  const line = document.createElement("li");
  const time = document.createElement("time");
  const words = document.createElement("span");
  line.dataset.hash = message.hashStr;
  time.dateTime = message.timestamp.toISOString();
  time.textContent = message.timestamp.toLocaleTimeString();
  words.textContent = text.decode(message.payload);
  line.append(time, words);
  const later = [...element("messages").children].find((other) => other.firstChild.dateTime > time.dateTime);
  element("messages").insertBefore(line, later ?? null);
}

const STATES = {
  connecting: "Connecting",
  connected: "Connected",
  lost: "The connection is lost",
  failed: "Not connected"
};

function showState(state, error) {
  element("state").textContent = error ? `${STATES[state]}: ${error.message}` : STATES[state];
  for (const each of element("post").elements) each.disabled = state !== "connected";
}

let stop = new AbortController();

async function start(gateway, chat) {
  stop.abort();
  const { signal } = (stop = new AbortController());
  element("messages").replaceChildren();
  if (!isSecureContext) throw new Error("browsers allow cryptography only over HTTPS, on localhost and in files");
  const contentTopic = topicOf(chat);
  const symKey = await keyOf(chat);
  const node = await createLightNode({
    networkConfig: { clusterId: CLUSTER, numShardsInCluster: SHARDS },
    libp2p: { filterMultiaddrs: false, hideWebSocketInfo: true }, // false: also a WebSocket without TLS
    defaultBootstrap: false
  });
  try {
    const { routingInfo } = node.createEncoder({ contentTopic });
    const encoder = createEncoder({ contentTopic, routingInfo, symKey });
    element("post").onsubmit = async (event) => {
      event.preventDefault();
      const payload = utf8.encode(element("text").value);
      const { failures } = await node.lightPush.send(encoder, { payload }, { autoRetry: false });
      if (failures.length) element("state").textContent = `Not sent: ${failures[0].error}`;
      else element("text").value = "";
    };
    const decoder = createDecoder(contentTopic, routingInfo, symKey);
    const since = new Date(Date.now() - HISTORY_MS);
    await follow(node, gateway, decoder, { since, onMessage: show, onState: showState, signal });
  } finally {
    await node.stop();
  }
}

element("where").onsubmit = (event) => {
  event.preventDefault();
  start(element("gateway").value.trim(), element("chat").value).catch((error) => showState("failed", error));
};

const given = new URLSearchParams(location.hash.slice(1));
if (given.has("gateway")) {
  element("gateway").value = given.get("gateway");
  element("chat").value = given.get("chat") ?? element("chat").value;
  element("where").requestSubmit();
}
