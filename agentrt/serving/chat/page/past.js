// The past events of a thread that are not in its state: inputs, answered questions, results of
// earlier runs, and errors. They are derived from the thread's runs, each of which has its input or
// its answers, and its result.

import { ask } from "./api.js";
import { isObject } from "./conversation.js";

const MOST_RUNS = 100;
const FAILED = new Set(["error", "timeout"]);
const ACTIVE = new Set(["pending", "running"]);
const results = new Map();

// The runs of a thread, newest first.
export const runsOf = (thread, most = MOST_RUNS) => ask("GET", `threads/${thread}/runs?limit=${most}`);

export const isActive = (run) => run !== undefined && ACTIVE.has(run.status);

// The past events in order. Each event has its `kind`: "input", "question", "answer", "result" or
// "fault". In a graph that has messages, `after` is the id of the message that it follows. The result
// of the last run is the thread's state, and not an event.
export async function pastOf(thread, latest, isChat) {
  const runs = [...latest].reverse();
  const items = [];
  let questions = [];
  let after = null;
  for (const [index, run] of runs.entries()) {
    const { input, command } = run.kwargs;
    if (command?.resume !== undefined) items.push(...answersOf(run, questions, command.resume, after));
    else if (!isChat && input !== null && input !== undefined) items.push({ kind: "input", id: `${run.run_id}/input`, value: input });
    after = lastId(input) ?? after;
    questions = [];
    if (isActive(run)) continue;
    const isLast = index === runs.length - 1;
    const isResumed = runs[index + 1]?.kwargs.command?.resume !== undefined;
    const hasFailed = FAILED.has(run.status);
    if (!(hasFailed || isResumed || (!isChat && !isLast))) continue;
    const result = await resultOf(thread, run);
    questions = result?.__interrupt__ ?? [];
    after = lastId(result) ?? after;
    const fault = result?.__error__;
    if (hasFailed) items.push({ kind: "fault", id: `${run.run_id}/fault`, after, text: `The run failed: ${fault?.message || fault?.error || run.status}`, isLast });
    else if (!isChat && !isLast && !questions.length && !isEmpty(result)) items.push({ kind: "result", id: `${run.run_id}/result`, value: result });
  }
  return items;
}

// The questions that a run answers, each with its answer.
function answersOf(run, questions, resume, after) {
  const byId = isObject(resume) && questions.some(({ id }) => id in resume);
  return questions.flatMap((question) => {
    const { id, value } = question;
    if (byId && !(id in resume)) return [];
    const about = { after };
    return [
      { ...about, kind: "question", id: `${run.run_id}/${id}/question`, value },
      { ...about, kind: "answer", id: `${run.run_id}/${id}/answer`, value: byId ? resume[id] : resume, question },
    ];
  });
}

export const isEmpty = (value) => value === null || value === undefined || value === "" || (typeof value === "object" && !Object.keys(value).length);

const lastId = (values) => (Array.isArray(values?.messages) ? (values.messages.at(-1)?.id ?? null) : null);

// The result of an ended run, which does not change any more. A request that failed is sent again next time.
async function resultOf(thread, { run_id: run }) {
  if (results.has(run)) return results.get(run);
  const result = await ask("GET", `threads/${thread}/runs/${run}/join`).catch(() => undefined);
  if (result !== undefined) results.set(run, result);
  return result;
}
