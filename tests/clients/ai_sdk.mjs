// The AI SDK (npm "ai") with its provider for servers like OpenAI's; the base URL is the argument. Prints JSON.
import {createOpenAICompatible} from "@ai-sdk/openai-compatible";
import {generateText, stepCountIs, streamText, tool} from "ai";
import {z} from "zod";

const provider = createOpenAICompatible({name: "statemark", baseURL: process.argv[2], apiKey: "none"});
const model = provider("scripted");
const found = {};

const answer = await generateText({model, prompt: "hi", maxRetries: 0});
found.answer = [answer.text, answer.reasoningText];
const stream = streamText({model, prompt: "hi", maxRetries: 0});
found.streamed = "";
for await (const piece of stream.textStream) found.streamed += piece;
const get_weather = tool({inputSchema: z.object({city: z.string()}), execute: async ({city}) => `sunny in ${city}`});
const agent = streamText({model, prompt: "weather?", tools: {get_weather}, stopWhen: stepCountIs(3), maxRetries: 0});
found.agent = await agent.text;
found.results = (await agent.steps).flatMap((step) => step.toolResults.map((result) => result.output));
console.log(JSON.stringify(found));
