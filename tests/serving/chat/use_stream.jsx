// A front end on React's hook of @langchain/langgraph-sdk, as its documentation uses it.
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { useStream } from "@langchain/langgraph-sdk/react";

const asked = new URLSearchParams(location.search);
const callerOptions = { maxRetries: 0 };

function Chat() {
  const [threadId, setThreadId] = useState(sessionStorage.getItem("thread"));
  const stream = useStream({
    apiUrl: asked.get("api"),
    apiKey: asked.get("key"),
    callerOptions,
    assistantId: "agent",
    threadId,
    onThreadId: (id) => (sessionStorage.setItem("thread", id), setThreadId(id)),
    reconnectOnMount: true,
    fetchStateHistory: true,
  });
  const say = (content, options) => stream.submit({ messages: [{ type: "human", content }] }, options);
  const before = (message) => stream.getMessagesMetadata(message)?.firstSeenState?.parent_checkpoint;
  const answer = () => stream.submit(undefined, { command: { resume: "yes" } });
  const send = (event) => (event.preventDefault(), say(new FormData(event.target).get("text")));
  return (
    <main>
      {stream.messages.map((message) => (
        <p key={message.id} className={message.type}>
          {message.content}
          {message.type === "human" && <button onClick={() => say("edited", { checkpoint: before(message) })}>edit</button>}
        </p>
      ))}
      {stream.interrupt && <button id="answer" onClick={answer}>{stream.interrupt.value}</button>}
      <form onSubmit={send}><input name="text" /></form>
      <output>{stream.error ? String(stream.error) : stream.isLoading ? "busy" : "idle"}</output>
    </main>
  );
}

createRoot(document.body.appendChild(document.createElement("div"))).render(<Chat />);
