// What runs in the page of `web.py`: builds sessions of onnxruntime-web and runs them. An error is an answer as well.

const HERE = new URL('.', import.meta.url);
const FILES = { wasm: 'ort.wasm.min.mjs', webgpu: 'ort.webgpu.min.mjs', webgl: 'ort.webgl.min.mjs' };
const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array, uint8: Uint8Array,
  uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array, float32: Float32Array, float64: Float64Array,
};
const sessions = new Map();
let ort, next = 0;

async function bytes(at) {
  const reply = await fetch(new URL(at, HERE));
  if (!reply.ok) throw new Error(`no ${at}: ${reply.status}`);
  return reply.arrayBuffer();
}

async function release(living) {
  for (const [key, session] of sessions) {
    if (living.includes(key)) continue;
    sessions.delete(key);
    await session.release();
  }
}

async function build({ model, provider, threads, level, layout, living }) {
  if (!ort) {
    ort = await import(new URL(FILES[provider], HERE));
    ort.env.logLevel = 'error';
    ort.env.wasm.wasmPaths = HERE.href;
    ort.env.wasm.numThreads = threads;
  }
  await release(living);
  if (provider === 'webgpu' && !(await navigator.gpu?.requestAdapter())) throw new Error('this browser has no WebGPU');
  const asked = layout ? { name: provider, preferredLayout: layout } : provider;
  const options = { executionProviders: [asked], graphOptimizationLevel: level, logSeverityLevel: 3 };
  const session = await ort.InferenceSession.create(new Uint8Array(await bytes(model)), options);
  sessions.set(++next, session);
  return { session: next };
}

function tensor(type, data, shape) {
  if (type !== 'float16') return new ort.Tensor(type, new ARRAYS[type](data), shape);
  try { // newer releases take Float16Array where the browser has it
    return new ort.Tensor(type, new Float16Array(data), shape);
  } catch {
    return new ort.Tensor(type, new Uint16Array(data), shape);
  }
}

async function run({ session, feeds, outputs }) {
  const fed = {};
  for (const { name, type, shape, at } of feeds) fed[name] = tensor(type, await bytes(at), shape);
  const results = await sessions.get(session).run(fed, outputs);
  const given = [];
  for (const name of outputs) {
    const value = results[name], at = `o${given.length}`, data = await value.getData();
    const body = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    await fetch(new URL(at, HERE), { method: 'POST', body });
    given.push({ name, at, type: value.type, dims: Array.from(value.dims) });
    value.dispose?.();
  }
  return { outputs: given };
}

const answering = (work) => async (request) => {
  try {
    return await work(request);
  } catch (error) {
    return { error: typeof error === 'number' ? `error ${error}` : String(error?.message ?? error) };
  }
};

self.subcut = { build: answering(build), run: answering(run) };
