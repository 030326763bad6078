// Runs Perfetto's trace processor as Perfetto's page runs it, but without a web worker. Requests come
// on stdin and answers go to stdout, each after its length (32 bits).
const fs = require('fs'), path = require('path'), vm = require('vm');
const {argv, stdin, stdout} = process;
const folder = argv[2];
const wasm = new Uint8Array(fs.readFileSync(path.join(folder, 'trace_processor.wasm')));
const send = (data) => {
  const size = Buffer.alloc(4);
  size.writeUInt32LE(data.length);
  stdout.write(Buffer.concat([size, data]));
};
const Module = WebAssembly.Module;
WebAssembly.Module = function (bytes) {
  if (bytes.length === 23) throw new Error('that is a test for 64 bits');
  return new Module(bytes);
};
Object.assign(globalThis, {
  self: {location: {href: 'file:///'}},
  WorkerGlobalScope: class {},
  XMLHttpRequest: class { open() {} send() { this.status = 200; this.response = wasm.buffer; } },
  process: undefined,
  console: {log() {}, warn() {}, error: console.error},
});
vm.runInThisContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'));
const port = {postMessage: (data) => send(Buffer.from(data))};
self.onmessage({data: port});
let kept = Buffer.alloc(0);
stdin.on('data', (piece) => {
  kept = Buffer.concat([kept, piece]);
  while (kept.length >= 4 && kept.length >= 4 + kept.readUInt32LE(0)) {
    const end = 4 + kept.readUInt32LE(0);
    port.onmessage({data: new Uint8Array(kept.subarray(4, end))});
    kept = kept.subarray(end);
  }
});
