// What @waku/proto, which js-waku reads packets with, makes of packets: `node decode.mjs`.
//
// It reads lines "kind hex" from stdin, and for each prints what it has decoded, encoded again, in hex; or "refused".
import { createInterface } from "node:readline";
import { proto_filter, proto_filter_v2, proto_lightpush, proto_metadata, proto_store } from "@waku/proto";

const kinds = {
  FilterSubscribeRequest: proto_filter_v2.FilterSubscribeRequest,
  FilterSubscribeResponse: proto_filter_v2.FilterSubscribeResponse,
  MessagePush: proto_filter_v2.MessagePush,
  FilterRpc: proto_filter.FilterRpc,
  StoreQueryRequest: proto_store.StoreQueryRequest,
  StoreQueryResponse: proto_store.StoreQueryResponse,
  LightPushRequest: proto_lightpush.LightPushRequestV3,
  LightPushResponse: proto_lightpush.LightPushResponseV3,
  PushRpc: proto_lightpush.PushRpc,
  Metadata: proto_metadata.WakuMetadataRequest,
};

for await (const line of createInterface({ input: process.stdin })) {
  const [kind, packet] = line.split(" ");
  try {
    const decoded = kinds[kind].decode(Buffer.from(packet, "hex"));
    console.log(Buffer.from(kinds[kind].encode(decoded)).toString("hex"));
  } catch {
    console.log("refused");
  }
}
