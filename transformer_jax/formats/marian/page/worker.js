// Runs Bergamot's engine: gets texts, answers {text, translation}; first {languages}, or {error}.
"use strict";

// What multiplies matrices of int8: the engine's own functions, which it wants to be given.
const GEMM = {
  int8_prepare_a: "int8PrepareAFallback",
  int8_prepare_b: "int8PrepareBFallback",
  int8_prepare_b_from_transposed: "int8PrepareBFromTransposedFallback",
  int8_prepare_b_from_quantized_transposed: "int8PrepareBFromQuantizedTransposedFallback",
  int8_prepare_bias: "int8PrepareBiasFallback",
  int8_multiply_and_add_bias: "int8MultiplyAndAddBiasFallback",
  int8_select_columns_of_b: "int8SelectColumnsOfBFallback",
};
const OPTIONS = { alignment: false, html: false, qualityScores: false };

let lastWords = ""; // of the engine, which says there why it ends
let translate = null;

async function content(path) {
  const response = await fetch(path);
  if (!response.ok) {
    throw new Error(`${path}: ${response.status} ${response.statusText}`);
  }
  return response.arrayBuffer();
}

// From bytes, and not from the response: a server need not know the type of .wasm.
function load(program) {
  return new Promise((resolve, reject) => {
    self.Module = {
      print() {},
      printErr(line) { lastWords = line; },
      instantiateWasm(info, accept) {
        const given = Object.entries(GEMM).map(
          ([name, own]) => [name, (...args) => self.Module.asm[own](...args)]);
        WebAssembly.instantiate(program, { ...info, wasm_gemm: Object.fromEntries(given) })
          .then(({ instance }) => accept(instance), reject);
        return {};
      },
      onRuntimeInitialized() { resolve(self.Module); },
    };
    importScripts("engine/bergamot-translator-worker.js");
  });
}

async function start() {
  const settings = JSON.parse(new TextDecoder().decode(await content("settings.json")));
  const names = [settings.model, settings.shortlist, ...settings.vocabs];
  const files = names.map((name) => (name ? content(`model/${name}`) : new ArrayBuffer(0)));
  const program = await content("engine/bergamot-translator-worker.wasm");
  const [model, shortlist, ...vocabs] = await Promise.all(files);
  const engine = await load(program);
  const memory = (bytes, alignment) => {
    const held = new engine.AlignedMemory(bytes.byteLength, alignment);
    held.getByteArrayView().set(new Int8Array(bytes));
    return held;
  };
  const list = new engine.AlignedMemoryList();
  vocabs.forEach((bytes) => list.push_back(memory(bytes, 64)));
  const service = new engine.BlockingService({ cacheSize: 0 });
  const translator = new engine.TranslationModel(
    settings.config, memory(model, 256), memory(shortlist, 64), list, null);
  translate = (text) => {
    const texts = new engine.VectorString();
    const options = new engine.VectorResponseOptions();
    texts.push_back(text);
    options.push_back(OPTIONS);
    const found = service.translate(translator, texts, options);
    const translation = found.get(0).getTranslatedText();
    [texts, options, found].forEach((each) => each.delete());
    return translation;
  };
  translate("."); // which reads the model
  self.postMessage({ languages: settings.languages });
}

function failed(error) {
  self.postMessage({ error: lastWords || error.message || String(error) });
}

self.onmessage = ({ data: text }) => {
  try {
    self.postMessage({ text, translation: translate(text) });
  } catch (error) {
    failed(error);
  }
};

start().catch(failed);
