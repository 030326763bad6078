// Runs scenarios of one client: a line of JSON asks for one, a line of JSON has what came of it.
"use strict";
const readline = require("node:readline");

exports.url = process.env.AGENTRT_URL;
exports.model = process.env.AGENTRT_MODEL;

exports.serve = async (scenarios) => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    let answer;
    try {
      answer = { result: await scenarios[asked.scenario](asked.word) };
    } catch (error) {
      answer = { error: String(error) };
    }
    process.stdout.write(JSON.stringify(answer) + "\n");
  }
};
