import t from 'tap'
import {
  type FileRole,
  parseGgufFileName,
  projectorFor,
  storedName
} from '../../../../../core/models/gguf-file-name.ts'
import {
  isUnsupported,
  quality,
  standInRank
} from '../../../../../plugins/models/download/choice/default-quantization.ts'

t.test('labels are read from real file names', t => {
  const table: [path: string, role: FileRole, label: string | undefined, shard?: string][] = [
    ['UD-Q4_K_XL/DeepSeek-V4-Pro-0813-UD-Q4_K_XL-00001-of-00020.gguf', 'model', 'UD-Q4_K_XL', '1/20'],
    ['UD-Q3_K_XL/Kimi-K2.5-UD-Q3_K_XL-00011-of-00011.gguf', 'model', 'UD-Q3_K_XL', '11/11'],
    ['Q3_K_M/Qwen3-Coder-480B-A35B-Instruct-Q3_K_M-00001-of-00005.gguf', 'model', 'Q3_K_M', '1/5'],
    ['gemma-3-270m-it-UD-IQ2_M.gguf', 'model', 'UD-IQ2_M'],
    ['Qwen3-Coder-30B-A3B-Instruct-UD-TQ1_0.gguf', 'model', 'UD-TQ1_0'],
    ['Qwen3-Coder-Next-MXFP4_MOE.gguf', 'model', 'MXFP4_MOE'],
    ['gpt-oss-120b-F16.gguf', 'model', 'F16'],
    ['distilled/ltx-2.3-22b-distilled-UD-Q4_K_M.gguf', 'model', 'UD-Q4_K_M'],
    ['Qwen3.8-27B-BF16-00001-of-00002.gguf', 'model', 'BF16', '1/2'],
    ['MTP/mtp-Qwen3.8-27B-Q4_0.gguf', 'draft', 'Q4_0'],
    ['MTP/Qwen3.8-27B-Q4_0.gguf', 'draft', 'Q4_0'],
    ['eagle3-Llama-3.1-8B-Q8_0.gguf', 'draft', 'Q8_0'],
    ['Qwen3.8-27B-Q4_K_M-mtp.gguf', 'draft', 'Q4_K_M'],
    ['Qwen3-8B-eagle3-Q8_0.gguf', 'draft', 'Q8_0'],
    ['Qwen3.8-27B-draft-Q4_K_M.gguf', 'draft', 'Q4_K_M'],
    ['Qwen3.5-27B-MTP-Q8_0.gguf', 'model', 'Q8_0'],
    ['my-lora-F16.gguf', 'adapter', 'F16'],
    ['Mixtral-8x7B-v0.1-Q4_0-LoRA.gguf', 'adapter', 'Q4_0'],
    ['alpaca-lora-merged-7B-Q4_0.gguf', 'model', 'Q4_0'],
    ['flux1-dev-Q4_0.gguf', 'image', 'Q4_0'],
    ['WavTokenizer-Large-75-Q8_0.gguf', 'other', 'Q8_0'],
    ['clip_l-F16.gguf', 'other', 'F16'],
    ['llama-3-vocab.gguf', 'other', undefined],
    ['mmproj-F32.gguf', 'projector', 'F32'],
    ['mmproj-Muse-Glimmer-30B-BF16.gguf', 'projector', 'BF16'],
    ['Agents-A1-4B-mmproj.gguf', 'projector', undefined],
    ['UI-TARS-1.5-7B.mmproj-Q8_0.gguf', 'projector', 'Q8_0'],
    ['imatrix_unsloth.gguf_file', 'imatrix', undefined],
    ['imatrix.dat', 'imatrix', undefined],
    ['Qwen3.5-0.8B.imatrix.gguf', 'imatrix', undefined],
    ['Meta-Llama-3-8B-f16-imatrix.gguf', 'imatrix', 'F16'],
    ['dolphin-imatrix-Q4_K_M.gguf', 'model', 'Q4_K_M'],
    ['70B-L3.3-Cirrus-x1-Q4_K_M.gguf', 'model', 'Q4_K_M'],
    ['M-Q5_K_L/M-Q5_K_L-00001-of-00002.gguf', 'model', 'Q5_K_L', '1/2'],
    ['M-Q5_K_L.gguf/part-00001-of-00002.gguf', 'model', 'Q5_K_L', '1/2'],
    ['google_gemma-3-4b-it-Q6_K_L.gguf', 'model', 'Q6_K_L'],
    ['Meta-Llama-3.1-8B-Instruct-Q4_0_4_4.gguf', 'model', 'Q4_0_4_4'],
    ['gemma-2-9b-it-Q4_K_M-fp16.gguf', 'model', 'Q4_K_M-F16'],
    ['gemma-2-9b-it-Q3_K_L-Q8.gguf', 'model', 'Q3_K_L-Q8'],
    ['Mistral-7B-Instruct-v0.3.f16.q5.gguf', 'model', 'F16-Q5'],
    ['x_Q8_0_f32.gguf', 'model', 'Q8_0-F32'],
    ['x-F16-Q8_0.gguf', 'model', 'Q8_0'],
    ['huihui-ai_Huihui-gpt-oss-20b-BF16-abliterated-MXFP4_MOE.gguf', 'model', 'MXFP4_MOE'],
    ['allura-org_Q3-30B-A3B-Designant-Q4_K_M.gguf', 'model', 'Q4_K_M'],
    ['allura-org_Q3-30B-A3B-Designant.gguf', 'model', undefined],
    ['grok-1/grok-1-q4_0-00003-of-00009.gguf', 'model', 'Q4_0', '3/9'],
    ['grok-1-IQ3_XS-split-00001-of-00009.gguf', 'model', 'IQ3_XS', '1/9'],
    ['codellama-7b.Q4_0.gguf', 'model', 'Q4_0'],
    ['falcon-180b-chat.Q6_K.gguf-split-a', 'split', 'Q6_K'],
    ['Meta-Llama-3.1-70B-Instruct.Q8_0.gguf.part1of2', 'split', 'Q8_0'],
    ['Huihui-gpt-oss-120b-BF16-abliterated.i1-IQ4_XS.gguf.part2of2', 'split', 'IQ4_XS'],
    ['Acolyte-22B.i1-Q4_K_M.gguf', 'model', 'Q4_K_M'],
    ['Phi-3-mini-4k-instruct-q4.gguf', 'model', 'Q4'],
    ['MN-12B-Mag-Mell-R1-Q4_K_M-imat.gguf', 'model', 'Q4_K_M'],
    ['Q8_0/amd.Instella-MoE-16B-A3B-Think.f16.gguf.Q8_0.gguf', 'model', 'Q8_0'],
    ['Hermes3.6-35B-A3B-Uncensored-Genesis-V7-Q8_K_P.gguf', 'model', 'Q8_K_P'],
    ['OpenAI-20B-NEO-MXFP4_MOE4.gguf', 'model', 'MXFP4'],
    ['openhermes-2.5.Q4_K.gguf', 'model', 'Q4_K'],
    ['GLM-4.5-IQ4_KSS-00001-of-00005.gguf', 'model', 'IQ4_KSS', '1/5'],
    ['ggml-model-i2_s.gguf', 'model', 'I2_S'],
    ['Q4_K_M/model-00001-of-00002.gguf', 'model', 'Q4_K_M', '1/2'],
    ['q4/deep/model.gguf', 'model', 'Q4'],
    ['Q8_0/x-Q4_0.gguf', 'model', 'Q4_0'],
    ['Qwen3.5-35B-A3B-APEX-Compact.gguf', 'model', undefined],
    ['tokenizer.gguf', 'other', undefined],
    ['model.safetensors', 'other', undefined],
    ['x-00003-of-00002.gguf', 'model', undefined],
    ['x-00001-of-00000.gguf', 'model', undefined]
  ]
  for (const [path, role, label, shard] of table) {
    const name = parseGgufFileName(path)
    t.equal(name.role, role, `${path}: role`)
    t.equal(name.label, label, `${path}: label`)
    t.equal(name.shard && `${name.shard.index}/${name.shard.count}`, shard, `${path}: shard`)
  }
  const group = (path: string) => parseGgufFileName(path).shard?.group
  t.equal(group('a/x-00001-of-00002.gguf'), group('a/x-00002-of-00002.gguf'))
  for (const other of ['b/x-00001-of-00002.gguf', 'a/y-00001-of-00002.gguf', 'a/x-00001-of-00003.gguf']) {
    t.not(group('a/x-00001-of-00002.gguf'), group(other))
  }
  const bases = ['Q8_0/M-7B-Q8_0.gguf', 'M-7B.i1-Q4_K_M.gguf', 'm-7b-UD-Q2_K_XL-00001-of-00002.gguf', 'M-7B-q4.gguf']
  for (const path of [...bases, 'M-7B-Q4_K_M-imat.gguf', 'M-7B-Q4_K_M-fp16.gguf', 'M-7B.F16.q5.gguf']) {
    t.equal(parseGgufFileName(path).base, 'm-7b', path)
  }
  t.end()
})

t.test('projectors belong to models in their folder', t => {
  const table: [model: string, others: string[], projector: string | undefined][] = [
    ['Q8_0/m-Q8_0.gguf', ['mmproj-F16.gguf'], 'mmproj-F16.gguf'],
    ['Q8_0/m-Q8_0.gguf', ['Q8_0/mmproj-BF16.gguf', 'mmproj-F16.gguf'], 'Q8_0/mmproj-BF16.gguf'],
    ['a/m-Q8_0.gguf', ['b/n-Q8_0.gguf', 'a/mmproj.gguf', 'b/mmproj.gguf'], 'a/mmproj.gguf'],
    ['a/llama-7b-Q8_0.gguf', ['b/llama-13b-Q8_0.gguf', 'mmproj.gguf'], undefined],
    ['m-7b-a-APEX-Compact.gguf', ['m-7b-a-APEX-Quality.gguf', 'mmproj.gguf'], undefined],
    ['qwen3-35b-APEX-Compact.gguf', ['qwen3-35b-APEX-Comfy.gguf', 'mmproj.gguf'], 'mmproj.gguf'],
    ['m-Q8_0.gguf', ['projectors/mmproj-m-Q8_0.gguf', 'projectors/mmproj-m-F32.gguf'], 'projectors/mmproj-m-F32.gguf'],
    ['m-Q8_0.gguf', ['mtp-x-Q8_0.gguf', 'x.imatrix.gguf', 'mmproj-F16.gguf'], 'mmproj-F16.gguf'],
    ['chat-7b-Q8_0.gguf', ['mmproj-other-f16.gguf'], undefined],
    ['llava-7b-Q8_0.gguf', ['mmproj-llava-13b-f16.gguf'], undefined],
    ['llava-1.6-mistral-7b.Q8_0.gguf', ['mmproj-mistral7b-f16.gguf'], 'mmproj-mistral7b-f16.gguf'],
    ['m-Q8_0.gguf', [], undefined]
  ]
  for (const [model, others, projector] of table) {
    t.equal(projectorFor(model, [model, ...others]), projector, [model, ...others].join(' '))
    t.equal(projectorFor(model, [...others].reverse().concat(model)), projector, 'whatever the order')
  }
  t.end()
})

t.test('stored file names are safe on every file system', t => {
  const table: [name: string, stored: string][] = [
    ['Qwen3-0.6B-Q8_0.gguf', 'Qwen3-0.6B-Q8_0.gguf'],
    ['a b,c:d*?"<>|.gguf', 'a_b_c_d______.gguf'],
    ['.hidden', '_hidden'],
    ['-m.gguf', '_m.gguf'],
    ['模型.gguf', '__.gguf'],
    ['aux.gguf', '_aux.gguf'],
    ['COM1', '_COM1'],
    ['console.gguf', 'console.gguf'],
    ['trailing.', 'trailing_']
  ]
  for (const [name, stored] of table) t.equal(storedName(name), stored, name)
  t.end()
})

t.test('quantizations are ranked by quality', t => {
  const order = ['IQ1_S', 'UD-IQ1_S', 'Q2_K', 'IQ3_M', 'Q3_K_M', 'IQ4_XS', 'Q4_0', 'MXFP4', 'Q4_K_S', 'Q4_K_M']
  order.push(
    'Q4_K_M-F16',
    'UD-Q4_K_M',
    'Q4_K_XL',
    'UD-Q4_K_XL',
    'Q5_K_M',
    'F16-Q6',
    'Q6_K',
    'Q8_0',
    'Q8_K_P',
    'F16',
    'F32'
  )
  for (const [index, label] of order.entries()) {
    if (index > 0) t.ok(quality(label) > quality(order[index - 1]!), `${order[index - 1]} < ${label}`)
  }
  t.equal(quality('XYZ'), -1)
  const first = [
    'Q4_K_M',
    'Q4_K_M-F16',
    'UD-Q4_K_M',
    'UD-Q4_K_XL',
    'Q4_K_XL',
    'Q4_K_S',
    'UD-Q4_K_S',
    'MXFP4',
    'Q4_0',
    'IQ4_NL'
  ]
  for (const [index, label] of first.entries()) {
    if (index > 0) t.ok(standInRank(label)! > standInRank(first[index - 1]!)!, `${first[index - 1]} before ${label}`)
  }
  for (const label of ['Q5_K_M', 'Q3_K_M', 'Q8_0', 'F16', 'IQ3_M']) t.equal(standInRank(label), undefined, label)
  for (const label of ['Q4_0_4_4', 'Q4_0_8_8', 'IQ4_KSS', 'IQ5_K', 'Q4_K_R4', 'I2_S']) t.ok(isUnsupported(label), label)
  for (const label of ['Q4_0', 'IQ4_XS', 'IQ4_NL', 'Q4_K_M', 'UD-IQ2_M', 'MXFP4_MOE'])
    t.notOk(isUnsupported(label), label)
  t.end()
})
