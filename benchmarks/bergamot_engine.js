// Translates with Bergamot's engine: WebAssembly of @browsermt/bergamot-translator, in node.
//
//   node bergamot_engine.js FOLDER < job.json     FOLDER: the package's `worker`
//
// The job has `config` (text), `model`, `vocabs` and perhaps `shortlist` (paths), `texts`; printed is
// the JSON list of their translations. With `alone` each is a batch of its own.
'use strict';
const {readFileSync} = require('node:fs');
const {join} = require('node:path');

const GEMM = {
  int8_prepare_a: 'int8PrepareAFallback',
  int8_prepare_b: 'int8PrepareBFallback',
  int8_prepare_b_from_transposed: 'int8PrepareBFromTransposedFallback',
  int8_prepare_b_from_quantized_transposed: 'int8PrepareBFromQuantizedTransposedFallback',
  int8_prepare_bias: 'int8PrepareBiasFallback',
  int8_multiply_and_add_bias: 'int8MultiplyAndAddBiasFallback',
  int8_select_columns_of_b: 'int8SelectColumnsOfBFallback',
};

function translated(engine, job) {
  const memory = (content, alignment) => {
    const held = new engine.AlignedMemory(content.length, alignment);
    held.getByteArrayView().set(content);
    return held;
  };
  const service = new engine.BlockingService({cacheSize: 0});
  const vocabs = new engine.AlignedMemoryList();
  for (const path of job.vocabs) vocabs.push_back(memory(readFileSync(path), 64));
  const shortlist = job.shortlist ? readFileSync(job.shortlist) : new Uint8Array(0);
  const model = new engine.TranslationModel(
      job.config, memory(readFileSync(job.model), 256), memory(shortlist, 64), vocabs, null);
  const batch = (texts) => {
    const input = new engine.VectorString();
    const options = new engine.VectorResponseOptions();
    for (const text of texts) {
      input.push_back(text);
      options.push_back({alignment: false, html: false, qualityScores: false});
    }
    const found = service.translate(model, input, options);
    return texts.map((_, i) => found.get(i).getTranslatedText());
  };
  return job.alone ? job.texts.flatMap((text) => batch([text])) : batch(job.texts);
}

const folder = process.argv[2];
const job = JSON.parse(readFileSync(0, 'utf-8'));
global.Module = {
  print: (line) => console.error(line),
  printErr: (line) => console.error(line),
  instantiateWasm: (info, accept) => {
    const gemm = {};
    for (const [name, fallback] of Object.entries(GEMM)) {
      gemm[name] = (...args) => global.Module.asm[fallback](...args);
    }
    WebAssembly.instantiate(
        readFileSync(join(folder, 'bergamot-translator-worker.wasm')), {...info, wasm_gemm: gemm},
    ).then(({instance}) => accept(instance));
    return {};
  },
  onRuntimeInitialized: () => {
    process.stdout.write(JSON.stringify(translated(global.Module, job)), () => process.exit(0));
  },
};
(0, eval)(readFileSync(join(folder, 'bergamot-translator-worker.js'), 'utf-8'));
