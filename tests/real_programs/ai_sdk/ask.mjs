// Ask a grid by the AI SDK. Use: `node ask.mjs FOLDER URL MODEL`, where FOLDER has the packages. Prints a JSON
// object: the answer, the answer as a stream, the answer to a second turn, the cities of its tool, and the error of
// a second turn without `store: false`, which refers to items that the grid does not keep.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, baseURL, model] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { createOpenAI } = await load('@ai-sdk/openai');
const { generateText, streamText, tool, jsonSchema, stepCountIs } = await load('ai');

const openai = createOpenAI({ baseURL, apiKey: 'none' });
const cities = [];
const properties = { city: { type: 'string' } };
const weather = tool({
  description: 'Return the weather of a city.',
  inputSchema: jsonSchema({ type: 'object', properties, required: ['city'], additionalProperties: false }),
  execute: async ({ city }) => {
    cities.push(city);
    return `sun in ${city}`;
  },
});
const common = {
  model: openai(model),
  tools: { weather },
  stopWhen: stepCountIs(4),
  maxRetries: 0,
  providerOptions: { openai: { store: false } },
};
const ask = { role: 'user', content: 'so it goes on' };

const first = await generateText({ ...common, messages: [ask] });
const stream = streamText({ ...common, messages: [ask] });
let streamed = '';
for await (const piece of stream.textStream) streamed += piece;
const history = [ask, ...first.response.messages, { role: 'user', content: 'and on' }];
const second = await generateText({ ...common, messages: history });
let refused = '';
try {
  await generateText({ ...common, messages: history, providerOptions: {} });
} catch (error) {
  refused = error.message;
}
const texts = { first: first.text.trim(), streamed: streamed.trim(), second: second.text.trim() };
console.log(JSON.stringify({ ...texts, cities, refused }));
