// Run blocks of JavaScript, as a page shows them. Use: `node run_blocks.mjs FOLDER`; the blocks are run as
// modules of FOLDER, whose `node_modules` has their packages. Each line of the input is the JSON text of one block.
// Each line of the output is a JSON object: what the block printed, and the error that it threw or null: its type,
// its text, and the status and the JSON body of the HTTP answer behind it, if there is one.
import { unlinkSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { format } from 'node:util';

const folder = process.argv[2];
globalThis.AI_SDK_LOG_WARNINGS = false;
let printed = '';
console.log = (...words) => (printed += `${format(...words)}\n`);
const write = process.stdout.write.bind(process.stdout);
process.stdout.write = (text) => ((printed += text), true);

function describe(error) {
  const told = { type: error?.name ?? 'Error', text: String(error?.message ?? error), status: 0, body: null };
  for (let cause = error; cause; cause = cause.lastError ?? cause.cause) {
    if (cause.statusCode) return { ...told, status: cause.statusCode, body: JSON.parse(cause.responseBody || 'null') };
  }
  return told;
}

let count = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const file = `${folder}/block-${count++}.mjs`;
  writeFileSync(file, JSON.parse(line));
  printed = '';
  let error = null;
  try {
    await import(`file://${file}`);
  } catch (thrown) {
    error = describe(thrown);
  }
  unlinkSync(file);
  write(`${JSON.stringify({ printed, error })}\n`);
}
