// node transformers_js.mjs PACKAGE FOLDER MOST: reads ids of sources as JSON, writes those of greedy
// translations, by Transformers.js.
import { readFileSync } from "node:fs";
import { basename, dirname } from "node:path";

const [at, folder, most] = process.argv.slice(2);
const { AutoModelForSeq2SeqLM, Tensor, env } = await import(at);
env.localModelPath = `${dirname(folder)}/`;
env.allowRemoteModels = false;
const model = await AutoModelForSeq2SeqLM.from_pretrained(basename(folder), { dtype: "fp32" });
const found = [];
for (const ids of JSON.parse(readFileSync(0, "utf8"))) {
  const tensor = (values) => new Tensor("int64", values, [1, ids.length]);
  const made = await model.generate({
    input_ids: tensor(BigInt64Array.from(ids, BigInt)),
    attention_mask: tensor(new BigInt64Array(ids.length).fill(1n)),
    max_new_tokens: Number(most),
  });
  found.push(Array.from(made.data, Number).slice(1));
}
console.log(JSON.stringify(found));
