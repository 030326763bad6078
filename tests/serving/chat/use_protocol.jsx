// The same on the hook of @langchain/react, which speaks the newer streaming protocol.
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { ProtocolWebSocketTransportAdapter } from "@langchain/langgraph-sdk";
import { useMessageMetadata, useStream } from "@langchain/react";

const asked = new URLSearchParams(location.search);
const key = asked.get("key");
// A page can give a WebSocket no header: its key goes as a subprotocol.
const webSocketFactory = (url) => new WebSocket(url, ["agentrt", `agentrt.bearer.${key}`]);
const socket = () => new ProtocolWebSocketTransportAdapter({ apiUrl: asked.get("api"), webSocketFactory });
const transport = asked.has("socket") ? (key ? socket() : "websocket") : "sse";
const callerOptions = { maxRetries: 0 };

function Message({ stream, message, edit }) {
  const before = useMessageMetadata(stream, message.id)?.parentCheckpointId;
  return (
    <p className={message.type}>
      {message.text}
      {message.type === "human" && <button onClick={() => edit(before)}>edit</button>}
    </p>
  );
}

function Chat() {
  const [threadId, setThreadId] = useState(sessionStorage.getItem("thread"));
  const stream = useStream({
    apiUrl: asked.get("api"),
    apiKey: key,
    transport,
    callerOptions,
    assistantId: "agent",
    threadId,
    onThreadId: (id) => (sessionStorage.setItem("thread", id), setThreadId(id)),
  });
  const say = (content, options) => stream.submit({ messages: [{ type: "human", content }] }, options);
  const answer = () => stream.respond("yes", { interruptId: stream.interrupt.id });
  const send = (event) => (event.preventDefault(), say(new FormData(event.target).get("text")));
  return (
    <main>
      {stream.messages.map((message) => (
        <Message key={message.id} stream={stream} message={message} edit={(forkFrom) => say("edited", { forkFrom })} />
      ))}
      {stream.interrupt && <button id="answer" onClick={answer}>{stream.interrupt.value}</button>}
      <form onSubmit={send}><input name="text" /></form>
      <output>{stream.error ? String(stream.error) : stream.isLoading ? "busy" : "idle"}</output>
    </main>
  );
}

createRoot(document.body.appendChild(document.createElement("div"))).render(<Chat />);
