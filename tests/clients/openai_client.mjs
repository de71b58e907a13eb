// The npm client of OpenAI against the server whose base URL is the argument; prints what it got as JSON.
import OpenAI from "openai";

const client = new OpenAI({baseURL: process.argv[2], apiKey: "none", maxRetries: 0});
const messages = [{role: "user", content: "hi"}];
const tools = [{type: "function", function: {name: "get_weather", parameters: {type: "object", properties: {city: {type: "string"}}}}}];
const found = {};

found.models = (await client.models.list()).data.map((model) => model.id);
found.answer = (await client.chat.completions.create({model: "scripted", messages})).choices[0].message.content;
found.streamed = "";
for await (const chunk of await client.chat.completions.create({model: "scripted", messages, stream: true})) {
  found.streamed += chunk.choices[0]?.delta?.content ?? "";
}
const run = client.chat.completions.stream({model: "scripted", messages, tools});
found.call = (await run.finalChatCompletion()).choices[0].message.tool_calls[0].function;
found.response = (await client.responses.create({model: "scripted", input: "hi"})).output_text;
try {
  await client.chat.completions.create({model: "other", messages});
} catch (error) {
  found.error = [error.status, error.code];
}
console.log(JSON.stringify(found));
