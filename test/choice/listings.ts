import { createHash } from 'node:crypto'
import type { HubFile } from '../../core/downloads.ts'

/**
 * A listing from lines `path size`: sizes are in GB (k: kB), `{Q4_K_M:2.5,Q8_0:4}` stands for a file each, and `[3]` for
 * three shards that share the size.
 */
export function listing(lines: string): HubFile[] {
  return lines
    .split('\n')
    .map(line => line.trim())
    .filter(line => line !== '')
    .flatMap(expandLabels)
    .flatMap(expandShards)
    .map(([path, size]) => ({ path, size, sha256: createHash('sha256').update(path).digest('hex') }))
}

function expandLabels(line: string): [path: string, size: number][] {
  const [, before, alternatives, after, size] = /^([^{]*)\{([^}]*)\}(.*?)(?: ([\d.]+k?))?$/.exec(line) ?? []
  if (alternatives === undefined) {
    const [path, bytes] = line.split(/ (?=[\d.]+k?$)/)
    return [[path!, bytesOf(bytes ?? '1k')]]
  }
  return alternatives.split(',').map(alternative => {
    const [label, bytes] = alternative.split(':')
    // A folder of the same name is written {} a second time.
    return [`${before}${label}${after}`.replaceAll('@', label!), bytesOf(bytes ?? size ?? '1k')]
  })
}

function expandShards([path, size]: [string, number]): [string, number][] {
  const count = Number(/\[(\d+)\]/.exec(path)?.[1] ?? 0)
  if (count === 0) return [[path, size]]
  const of = String(count).padStart(5, '0')
  return Array.from({ length: count }, (_, index) => {
    const shard = `-${String(index + 1).padStart(5, '0')}-of-${of}`
    return [path.replace(/\[\d+\]/, shard), Math.round(size / count)]
  })
}

const bytesOf = (text: string) => Math.round(Number.parseFloat(text) * (text.endsWith('k') ? 1e3 : 1e9))

export interface Expectation {
  id: string
  files: HubFile[]
  /** What a tag gives (`''` is none), on a machine with 32 GiB and no GPU: a label and files by path, or an error. */
  gives: Record<string, [label: string | undefined, ...paths: string[]] | RegExp>
  weightsInIndex?: string[]
}

const TOKENIZER = `tokenizer.json 11000k
tokenizer_config.json 10k
generation_config.json 1k
config.json 1k`

const BARTOWSKI_8B =
  '{IQ2_M:2.95,Q2_K:3.18,IQ3_XS:3.52,Q3_K_L:4.32,IQ4_XS:4.45,Q4_0:4.66,Q4_0_4_4:4.66,Q4_0_8_8:4.66,Q4_K_S:4.69,Q4_K_M:4.92,Q4_K_L:5.31,Q5_K_M:5.73,Q5_K_L:6.06,Q6_K:6.6,Q6_K_L:6.85,Q8_0:8.54,f32:32.1}'
const UNSLOTH =
  '{IQ4_NL,IQ4_XS,Q2_K,Q3_K_M,Q4_0,Q4_1,Q4_K_M,Q4_K_S,Q5_K_M,Q6_K,Q8_0,UD-IQ1_M,UD-IQ2_XXS,UD-Q2_K_XL,UD-Q3_K_XL,UD-Q4_K_XL,UD-Q5_K_XL,UD-Q6_K_XL,UD-Q8_K_XL,BF16}'

/** Repositories as they are (names of files; sizes about right). */
export const LISTINGS: Expectation[] = [
  {
    id: 'Qwen/Qwen3-0.6B-GGUF',
    files: listing(`.gitattributes
      LICENSE 11k
      README.md 6k
      params 1k
      Qwen3-0.6B-Q8_0.gguf 0.639`),
    gives: {
      '': ['Q8_0', 'Qwen3-0.6B-Q8_0.gguf', 'LICENSE', 'README.md', 'params'],
      Q8_0: ['Q8_0', 'Qwen3-0.6B-Q8_0.gguf', 'LICENSE', 'README.md', 'params'],
      Q4_K_M: /has no Q4_K_M. It has Q8_0 \(639 MB\)\. .* Qwen\/Qwen3-0\.6B-GGUF:Q8_0/
    }
  },
  {
    id: 'Qwen/Qwen2.5-7B-Instruct-GGUF',
    files: listing(`qwen2.5-7b-instruct-{q2_k:3.02,q3_k_m:3.81}.gguf
      qwen2.5-7b-instruct-{q4_0:4.44,q4_k_m:4.68,q5_0:5.32,q5_k_m:5.44,q6_k:6.25}[2].gguf
      qwen2.5-7b-instruct-q8_0[3].gguf 8.1
      qwen2.5-7b-instruct-fp16[4].gguf 15.2`),
    gives: {
      '': ['Q8_0', ...[1, 2, 3].map(index => `qwen2.5-7b-instruct-q8_0-0000${index}-of-00003.gguf`)],
      q4_k_m: [
        'Q4_K_M',
        'qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf',
        'qwen2.5-7b-instruct-q4_k_m-00002-of-00002.gguf'
      ],
      'qwen2.5-7b-instruct-q4_0-00002-of-00002.gguf': [
        'Q4_0',
        'qwen2.5-7b-instruct-q4_0-00001-of-00002.gguf',
        'qwen2.5-7b-instruct-q4_0-00002-of-00002.gguf'
      ],
      'qwen2.5-7b-instruct-q2_k': ['Q2_K', 'qwen2.5-7b-instruct-q2_k.gguf'],
      fp16: ['F16', ...[1, 2, 3, 4].map(index => `qwen2.5-7b-instruct-fp16-0000${index}-of-00004.gguf`)]
    }
  },
  {
    id: 'Qwen/Qwen2.5-0.5B-Instruct-GGUF',
    files: listing(
      'qwen2.5-0.5b-instruct-{fp16:1.27,q2_k:0.41,q4_0:0.43,q4_k_m:0.49,q5_k_m:0.52,q6_k:0.65,q8_0:0.67}.gguf'
    ),
    gives: { '': ['Q8_0', 'qwen2.5-0.5b-instruct-q8_0.gguf'], Q4_K_M: ['Q4_K_M', 'qwen2.5-0.5b-instruct-q4_k_m.gguf'] }
  },
  {
    id: 'Qwen/Qwen3-Embedding-0.6B-GGUF',
    files: listing('Qwen3-Embedding-0.6B-{Q8_0:0.64,f16:1.2}.gguf'),
    gives: { '': ['Q8_0', 'Qwen3-Embedding-0.6B-Q8_0.gguf'], F16: ['F16', 'Qwen3-Embedding-0.6B-f16.gguf'] }
  },
  {
    id: 'bartowski/Meta-Llama-3.1-8B-Instruct-GGUF',
    files: listing(`README.md 12k
      Meta-Llama-3.1-8B-Instruct.imatrix 0.005
      Meta-Llama-3.1-8B-Instruct-${BARTOWSKI_8B}.gguf`),
    gives: {
      '': ['Q8_0', 'Meta-Llama-3.1-8B-Instruct-Q8_0.gguf', 'README.md'],
      Q4_0: ['Q4_0', 'Meta-Llama-3.1-8B-Instruct-Q4_0.gguf', 'README.md'],
      Q4_0_4_4: ['Q4_0_4_4', 'Meta-Llama-3.1-8B-Instruct-Q4_0_4_4.gguf', 'README.md'],
      F32: ['F32', 'Meta-Llama-3.1-8B-Instruct-f32.gguf', 'README.md'],
      'Meta-Llama-3.1-8B-Instruct.imatrix': /imatrix .*importance matrix/
    }
  },
  {
    id: 'bartowski/Meta-Llama-3.1-70B-Instruct-GGUF',
    files:
      listing(`Meta-Llama-3.1-70B-Instruct-{IQ1_M:16.8,IQ2_XXS:19.1,Q2_K:26.4,IQ3_M:31.9,Q3_K_M:34.3,Q4_K_M:42.5,Q4_K_L:43.3}.gguf
      Meta-Llama-3.1-70B-Instruct-{Q5_K_L:50.6,Q5_K_M:49.9,Q6_K:57.9,Q8_0:75}/Meta-Llama-3.1-70B-Instruct-@[2].gguf`),
    gives: {
      '': ['IQ2_XXS', 'Meta-Llama-3.1-70B-Instruct-IQ2_XXS.gguf'],
      Q5_K_L: [
        'Q5_K_L',
        'Meta-Llama-3.1-70B-Instruct-Q5_K_L/Meta-Llama-3.1-70B-Instruct-Q5_K_L-00001-of-00002.gguf',
        'Meta-Llama-3.1-70B-Instruct-Q5_K_L/Meta-Llama-3.1-70B-Instruct-Q5_K_L-00002-of-00002.gguf'
      ]
    }
  },
  {
    id: 'bartowski/Meta-Llama-3-70B-Instruct-GGUF',
    files: listing(`Meta-Llama-3-70B-Instruct-{IQ1_M:16.8,Q4_K_M:42.5}.gguf
      Meta-Llama-3-70B-Instruct-{Q5_K_L:50.6,Q6_K:57.9}.gguf/Meta-Llama-3-70B-Instruct-@[2].gguf`),
    gives: {
      Q6_K: [
        'Q6_K',
        'Meta-Llama-3-70B-Instruct-Q6_K.gguf/Meta-Llama-3-70B-Instruct-Q6_K-00001-of-00002.gguf',
        'Meta-Llama-3-70B-Instruct-Q6_K.gguf/Meta-Llama-3-70B-Instruct-Q6_K-00002-of-00002.gguf'
      ],
      'Meta-Llama-3-70B-Instruct-Q5_K_L.gguf': [
        'Q5_K_L',
        'Meta-Llama-3-70B-Instruct-Q5_K_L.gguf/Meta-Llama-3-70B-Instruct-Q5_K_L-00001-of-00002.gguf',
        'Meta-Llama-3-70B-Instruct-Q5_K_L.gguf/Meta-Llama-3-70B-Instruct-Q5_K_L-00002-of-00002.gguf'
      ]
    }
  },
  {
    id: 'bartowski/gemma-2-9b-it-GGUF',
    files:
      listing(`gemma-2-9b-it-{Q4_K_M:5.76,Q4_K_L:5.98,Q4_K_M-fp16:6.8,Q3_K_L-Q8:5.35,Q8_0:9.83,Q8_0-f16:10.9,f32:37}.gguf
      gemma-2-9b-it.imatrix 0.006`),
    gives: {
      '': ['Q8_0', 'gemma-2-9b-it-Q8_0.gguf'],
      Q4_K_M: ['Q4_K_M', 'gemma-2-9b-it-Q4_K_M.gguf'],
      'Q4_K_M-F16': ['Q4_K_M-F16', 'gemma-2-9b-it-Q4_K_M-fp16.gguf'],
      'q4_k_m-fp16': ['Q4_K_M-F16', 'gemma-2-9b-it-Q4_K_M-fp16.gguf']
    }
  },
  {
    id: 'bartowski/google_gemma-3-4b-it-GGUF',
    files: listing(`google_gemma-3-4b-it-{IQ2_M:1.54,Q4_K_M:2.49,Q6_K_L:3.35,Q8_0:4.13,bf16:7.77}.gguf
      google_gemma-3-4b-it-imatrix.dat 0.004
      mmproj-google_gemma-3-4b-it-{f16,f32,bf16}.gguf 0.851`),
    gives: {
      '': ['Q8_0', 'google_gemma-3-4b-it-Q8_0.gguf', 'mmproj-google_gemma-3-4b-it-f16.gguf'],
      BF16: ['BF16', 'google_gemma-3-4b-it-bf16.gguf', 'mmproj-google_gemma-3-4b-it-f16.gguf'],
      'mmproj-google_gemma-3-4b-it-f16.gguf': /is a projector/
    }
  },
  {
    id: 'bartowski/huihui-ai_Huihui-gpt-oss-20b-BF16-abliterated-GGUF',
    files: listing('huihui-ai_Huihui-gpt-oss-20b-BF16-abliterated-{MXFP4_MOE:12.1,Q6_K:22,bf16:41.9}.gguf'),
    gives: {
      MXFP4_MOE: ['MXFP4_MOE', 'huihui-ai_Huihui-gpt-oss-20b-BF16-abliterated-MXFP4_MOE.gguf'],
      '': ['MXFP4_MOE', 'huihui-ai_Huihui-gpt-oss-20b-BF16-abliterated-MXFP4_MOE.gguf']
    }
  },
  {
    id: 'unsloth/gemma-3-12b-it-qat-GGUF',
    files: listing(`gemma-3-12b-it-qat-${UNSLOTH}.gguf 7
      config.json 1k
      imatrix_unsloth.gguf_file 0.01
      mmproj-{BF16,F16,F32}.gguf 0.85`),
    gives: {
      '': ['Q8_0', 'gemma-3-12b-it-qat-Q8_0.gguf', 'mmproj-F16.gguf', 'config.json'],
      Q4_K_XL: ['UD-Q4_K_XL', 'gemma-3-12b-it-qat-UD-Q4_K_XL.gguf', 'mmproj-F16.gguf', 'config.json'],
      'UD-Q4_K_M': /has no UD-Q4_K_M/,
      F16: /has no F16/,
      'imatrix_unsloth.gguf_file': /importance matrix/
    }
  },
  {
    id: 'unsloth/gpt-oss-20b-GGUF',
    files: listing(`gpt-oss-20b-{F16:13.8,Q2_K:11.5,Q4_K_M:11.6,Q6_K:12,Q8_0:12.1,UD-Q4_K_XL:11.9,UD-Q8_K_XL:13.2}.gguf
      template 7k
      params 1k`),
    gives: {
      '': ['Q8_0', 'gpt-oss-20b-Q8_0.gguf', 'params', 'template'],
      F16: ['F16', 'gpt-oss-20b-F16.gguf', 'params', 'template']
    }
  },
  {
    id: 'unsloth/DeepSeek-V4-Pro-0813-GGUF',
    files: listing(`BF16/DeepSeek-V4-Pro-0813-BF16[30].gguf 1340
      Q8_0/DeepSeek-V4-Pro-0813-Q8_0[16].gguf 713
      UD-Q4_K_XL/DeepSeek-V4-Pro-0813-UD-Q4_K_XL[20].gguf 404
      UD-IQ1_S/DeepSeek-V4-Pro-0813-UD-IQ1_S[4].gguf 185
      README.md 20k`),
    gives: {
      '': [
        'UD-Q4_K_XL',
        ...Array.from(
          { length: 20 },
          (_, index) => `UD-Q4_K_XL/DeepSeek-V4-Pro-0813-UD-Q4_K_XL-${String(index + 1).padStart(5, '0')}-of-00020.gguf`
        ),
        'README.md'
      ],
      'UD-IQ1_S': [
        'UD-IQ1_S',
        ...[1, 2, 3, 4].map(index => `UD-IQ1_S/DeepSeek-V4-Pro-0813-UD-IQ1_S-0000${index}-of-00004.gguf`),
        'README.md'
      ]
    }
  },
  {
    id: 'unsloth/Qwen3.8-27B-GGUF',
    files: listing(`Qwen3.8-27B-BF16[2].gguf 54
      Qwen3.8-27B-{UD-IQ2_XXS:8.6,Q4_K_M:16.5,UD-Q6_K_M:22.6,Q8_0:28.7}.gguf
      MTP/mtp-Qwen3.8-27B-{Q4_0:0.3,Q8_0:0.5}.gguf
      mmproj-{BF16,F16}.gguf 0.9`),
    gives: {
      '': ['Q4_K_M', 'Qwen3.8-27B-Q4_K_M.gguf', 'mmproj-F16.gguf'],
      'UD-Q6_K_M': ['UD-Q6_K_M', 'Qwen3.8-27B-UD-Q6_K_M.gguf', 'mmproj-F16.gguf'],
      'MTP/mtp-Qwen3.8-27B-Q4_0.gguf': /is a draft/,
      Q4_0: /has no Q4_0/
    }
  },
  {
    id: 'unsloth/Muse-Glimmer-30B-GGUF',
    files: listing(`Muse-Glimmer-30B-{UD-Q4_K_XL:17.7,UD-Q6_K_XL:26}.gguf
      mmproj-Muse-Glimmer-30B-{BF16,F32}.gguf 1.1`),
    gives: { '': ['UD-Q4_K_XL', 'Muse-Glimmer-30B-UD-Q4_K_XL.gguf', 'mmproj-Muse-Glimmer-30B-BF16.gguf'] }
  },
  {
    id: 'unsloth/LTX-2.3-GGUF',
    files: listing(`dev/ltx-2.3-22b-dev-{UD-Q4_K_M:14,UD-Q8_0:24}.gguf
      distilled/ltx-2.3-22b-distilled-{UD-Q4_K_M:14,UD-Q8_0:24}.gguf`),
    gives: {
      '': /4 models: .*ltx-2\.3-22b-dev-UD-Q4_K_M/,
      'UD-Q4_K_M': /2 models that UD-Q4_K_M may mean/,
      'ltx-2.3-22b-distilled-UD-Q4_K_M': [
        'ltx-2.3-22b-distilled-UD-Q4_K_M',
        'distilled/ltx-2.3-22b-distilled-UD-Q4_K_M.gguf'
      ],
      'dev/ltx-2.3-22b-dev-UD-Q8_0.gguf': ['ltx-2.3-22b-dev-UD-Q8_0', 'dev/ltx-2.3-22b-dev-UD-Q8_0.gguf']
    }
  },
  {
    id: 'unsloth/Kimi-K2.5-GGUF',
    files: listing(`UD-Q3_K_XL/Kimi-K2.5-UD-Q3_K_XL[11].gguf 450
      UD-TQ1_0/Kimi-K2.5-UD-TQ1_0[5].gguf 240`).filter(file => !file.path.includes('00007-of-00011')),
    gives: {
      '': ['UD-TQ1_0', ...[1, 2, 3, 4, 5].map(index => `UD-TQ1_0/Kimi-K2.5-UD-TQ1_0-0000${index}-of-00005.gguf`)],
      'UD-Q3_K_XL': /lacks UD-Q3_K_XL\/Kimi-K2\.5-UD-Q3_K_XL-00007-of-00011\.gguf/
    }
  },
  {
    id: 'ggml-org/gpt-oss-120b-GGUF',
    files: listing('gpt-oss-120b-mxfp4[3].gguf 63.4'),
    gives: { '': ['MXFP4', ...[1, 2, 3].map(index => `gpt-oss-120b-mxfp4-0000${index}-of-00003.gguf`)] }
  },
  {
    id: 'ggml-org/gemma-3-4b-it-GGUF',
    files: listing(`gemma-3-4b-it-{Q4_K_M:2.49,Q8_0:4.13,f16:7.77}.gguf
      mmproj-model-f16.gguf 0.851`),
    gives: {
      '': ['Q8_0', 'gemma-3-4b-it-Q8_0.gguf', 'mmproj-model-f16.gguf'],
      latest_: /has no latest_/
    }
  },
  {
    id: 'ggml-org/DeepSeek-OCR-GGUF',
    files: listing(`DeepSeek-OCR-Q8_0.gguf 3.1
      mmproj-DeepSeek-OCR-Q8_0.gguf 0.45`),
    gives: { '': ['Q8_0', 'DeepSeek-OCR-Q8_0.gguf', 'mmproj-DeepSeek-OCR-Q8_0.gguf'] }
  },
  {
    id: 'ggml-org/Qwen3.8-27B-GGUF',
    files: listing(`Qwen3.8-27B-{Q4_0:15.5,Q8_0:28.7}.gguf
      mtp-Qwen3.8-27B-{Q4_0:0.4,Q8_0:0.7}.gguf`),
    gives: { '': ['Q4_0', 'Qwen3.8-27B-Q4_0.gguf'], 'mtp-Qwen3.8-27B-Q4_0': /is a draft/ }
  },
  {
    id: 'ggml-org/models',
    files: listing(`bert-bge-small/ggml-model-f16.gguf 0.067
      grok-1/grok-1-q4_0[9].gguf 178
      phi-2/ggml-model-q4_0.gguf 1.6
      tinyllamas/stories15M-q4_0.gguf 0.019
      tinyllamas/stories260K.gguf 0.001`),
    gives: {
      '': /models: /,
      'bert-bge-small': ['F16', 'bert-bge-small/ggml-model-f16.gguf'],
      'stories15M-q4_0.gguf': ['stories15M-q4_0', 'tinyllamas/stories15M-q4_0.gguf'],
      stories260K: ['stories260K', 'tinyllamas/stories260K.gguf'],
      Q4_0: /3 models that Q4_0 may mean/
    }
  },
  {
    id: 'Arki05/Grok-1-GGUF',
    files: listing('grok-1-{IQ3_XS:125,Q4_K:190}-split[9].gguf'),
    gives: {
      IQ3_XS: ['IQ3_XS', ...[1, 2, 3, 4, 5, 6, 7, 8, 9].map(index => `grok-1-IQ3_XS-split-0000${index}-of-00009.gguf`)],
      '': ['Q4_K', ...[1, 2, 3, 4, 5, 6, 7, 8, 9].map(index => `grok-1-Q4_K-split-0000${index}-of-00009.gguf`)]
    }
  },
  {
    id: 'lmstudio-community/Qwen3-235B-A22B-Instruct-2507-GGUF',
    files: listing('Qwen3-235B-A22B-Instruct-2507-{Q3_K_L:122,Q4_K_M:142,Q8_0:250}[3].gguf'),
    gives: {
      Q3_K_L: ['Q3_K_L', ...[1, 2, 3].map(index => `Qwen3-235B-A22B-Instruct-2507-Q3_K_L-0000${index}-of-00003.gguf`)]
    }
  },
  {
    id: 'lmstudio-community/gemma-3-12b-it-GGUF',
    files: listing(`gemma-3-12b-it-{Q3_K_L:6.5,Q4_K_M:7.3,Q6_K:9.7,Q8_0:12.5}.gguf
      mmproj-model-f16.gguf 0.854`),
    gives: { '': ['Q8_0', 'gemma-3-12b-it-Q8_0.gguf', 'mmproj-model-f16.gguf'] }
  },
  {
    id: 'TheBloke/Llama-2-7B-Chat-GGUF',
    files: listing(`LICENSE.txt 7k
      Notice 1k
      USE_POLICY.md 5k
      config.json 1k
      llama-2-7b-chat.{Q2_K:2.83,Q3_K_M:3.3,Q4_0:3.83,Q4_K_M:4.08,Q5_K_M:4.78,Q6_K:5.53,Q8_0:7.16}.gguf`),
    gives: {
      '': ['Q8_0', 'llama-2-7b-chat.Q8_0.gguf', 'LICENSE.txt', 'Notice', 'config.json'],
      Q4_0: ['Q4_0', 'llama-2-7b-chat.Q4_0.gguf', 'LICENSE.txt', 'Notice', 'config.json']
    }
  },
  {
    id: 'TheBloke/Llama-2-70B-Chat-GGUF',
    files: listing(`llama-2-70b-chat.{Q2_K:29.3,Q4_K_M:41.4,Q5_K_M:48.8}.gguf
      llama-2-70b-chat.{Q6_K,Q8_0}.gguf-split-a 36
      llama-2-70b-chat.{Q6_K,Q8_0}.gguf-split-b 30`),
    gives: {
      Q8_0: /has no Q8_0\. It has Q5_K_M/,
      'llama-2-70b-chat.Q8_0.gguf-split-a': /is a piece of a file that was cut/
    }
  },
  {
    id: 'mradermacher/Acolyte-22B-i1-GGUF',
    files: listing(`Acolyte-22B.i1-{IQ1_S:4.9,IQ4_XS:12,Q4_0:12.7,Q4_0_4_4:12.6,Q4_K_S:12.8,Q4_K_M:13.4,Q6_K:18.4}.gguf
      imatrix.dat 0.01
      README.md 5k`),
    gives: {
      '': ['Q6_K', 'Acolyte-22B.i1-Q6_K.gguf', 'README.md'],
      'Acolyte-22B.i1-Q4_K_M': ['Q4_K_M', 'Acolyte-22B.i1-Q4_K_M.gguf', 'README.md']
    }
  },
  {
    id: 'mradermacher/Huihui-gpt-oss-120b-BF16-abliterated-i1-GGUF',
    files: listing(`Huihui-gpt-oss-120b-BF16-abliterated.i1-{IQ4_XS,Q4_K_M}.gguf.part1of2 34
      Huihui-gpt-oss-120b-BF16-abliterated.i1-{IQ4_XS,Q4_K_M}.gguf.part2of2 34
      Huihui-gpt-oss-120b-BF16-abliterated.imatrix.gguf 0.3`),
    gives: { '': /pieces of GGUF files that were cut.*importance matrix/, Q4_K_M: /pieces of GGUF files/ }
  },
  {
    id: 'mradermacher/UI-TARS-1.5-7B-GGUF',
    files: listing(`UI-TARS-1.5-7B.{Q2_K:3.1,Q4_K_M:4.8,Q8_0:8.2,f16:15.3}.gguf
      UI-TARS-1.5-7B.mmproj-{Q8_0:0.85,f16:1.35}.gguf`),
    gives: { '': ['Q8_0', 'UI-TARS-1.5-7B.Q8_0.gguf', 'UI-TARS-1.5-7B.mmproj-f16.gguf'] }
  },
  {
    id: 'google/gemma-3-4b-it-qat-q4_0-gguf',
    files: listing(`gemma-3-4b-it-q4_0.gguf 3.16
      mmproj-model-f16-4B.gguf 0.851`),
    gives: { '': ['Q4_0', 'gemma-3-4b-it-q4_0.gguf', 'mmproj-model-f16-4B.gguf'] }
  },
  {
    id: 'microsoft/Phi-3-mini-4k-instruct-gguf',
    files: listing(`CODE_OF_CONDUCT.md 1k
      LICENSE 1k
      Modelfile_q4 1k
      Phi-3-mini-4k-instruct-fp16.gguf 7.64
      Phi-3-mini-4k-instruct-q4.gguf 2.39`),
    gives: {
      '': ['Q4', 'Phi-3-mini-4k-instruct-q4.gguf', 'LICENSE'],
      q4: ['Q4', 'Phi-3-mini-4k-instruct-q4.gguf', 'LICENSE'],
      FP16: ['F16', 'Phi-3-mini-4k-instruct-fp16.gguf', 'LICENSE']
    }
  },
  {
    id: 'microsoft/BitNet-b1.58-2B-4T-gguf',
    files: listing('ggml-model-i2_s.gguf 1.19'),
    gives: { '': /only quantizations that llama\.cpp does not load.*I2_S/ }
  },
  {
    id: 'ubergarm/GLM-4.5-Air-GGUF',
    files: listing('IQ4_KSS/GLM-4.5-Air-IQ4_KSS[2].gguf 58\nIQ5_K/GLM-4.5-Air-IQ5_K[2].gguf 74'),
    gives: { '': /does not load.*IQ4_KSS/ }
  },
  {
    id: 'Lewdiculous/MN-12B-Mag-Mell-R1-GGUF-IQ-ARM-Imatrix',
    files: listing(
      'MN-12B-Mag-Mell-R1-{IQ3_M:5.7,Q4_K_M:7.5,Q8_0:13}-imat.gguf\nMN-12B-Mag-Mell-R1-F16.gguf 24.5\nimatrix.dat 0.01'
    ),
    gives: { '': ['Q8_0', 'MN-12B-Mag-Mell-R1-Q8_0-imat.gguf'] }
  },
  {
    id: 'DevQuasar/amd.Instella-MoE-16B-A3B-Think-GGUF',
    files: listing('{Q4_K_M:9.9,Q8_0:17}/amd.Instella-MoE-16B-A3B-Think.f16.gguf.@.gguf'),
    gives: { '': ['Q8_0', 'Q8_0/amd.Instella-MoE-16B-A3B-Think.f16.gguf.Q8_0.gguf'] }
  },
  {
    id: 'LuffyTheFox/Qwen3.6-35B-A3B-Uncensored-Genesis-Hermes-V7-GGUF',
    files: listing('Hermes3.6-35B-A3B-Uncensored-Genesis-V7-{Q4_K_P:21.5,Q8_K_P:41}.gguf'),
    gives: {
      Q8_K_P: ['Q8_K_P', 'Hermes3.6-35B-A3B-Uncensored-Genesis-V7-Q8_K_P.gguf']
    }
  },
  {
    id: 'InternScience/Agents-A1-4B-Q8_0-GGUF',
    files: listing('Agents-A1-4B.gguf 4.3\nAgents-A1-4B-mmproj.gguf 0.7'),
    gives: { '': ['Q8_0', 'Agents-A1-4B.gguf', 'Agents-A1-4B-mmproj.gguf'] }
  },
  {
    id: 'mudler/Qwen3.5-35B-A3B-APEX-GGUF',
    files: listing('Qwen3.5-35B-A3B-APEX-{Compact:17,Quality:22.8,I-Mini:13}.gguf\nmmproj.gguf 0.9'),
    gives: {
      '': /3 models: /,
      'Qwen3.5-35B-A3B-APEX-Compact': [
        'Qwen3.5-35B-A3B-APEX-Compact',
        'Qwen3.5-35B-A3B-APEX-Compact.gguf',
        'mmproj.gguf'
      ]
    }
  },
  {
    id: 'giladgd/gpt-oss-20b-GGUF',
    files: listing('gpt-oss-20b.MXFP4.gguf 12.1'),
    gives: { '': ['MXFP4', 'gpt-oss-20b.MXFP4.gguf'], mxfp4: ['MXFP4', 'gpt-oss-20b.MXFP4.gguf'] }
  },
  {
    id: 'DavidAU/Openai_gpt-oss-20b-NEO-GGUF',
    files: listing('OpenAI-20B-NEO-{MXFP4_MOE4:12.1,Q8_0:22,IQ4_NL:12}.gguf'),
    gives: { '': ['MXFP4', 'OpenAI-20B-NEO-MXFP4_MOE4.gguf'] }
  },
  {
    id: 'nomic-ai/nomic-embed-text-v1.5-GGUF',
    files: listing('nomic-embed-text-v1.5.{Q2_K:0.049,Q4_K_M:0.084,Q8_0:0.146,f16:0.274,f32:0.548}.gguf'),
    gives: { '': ['Q8_0', 'nomic-embed-text-v1.5.Q8_0.gguf'] }
  },
  {
    id: 'ggml-org/stories-twice',
    files: listing('stories-Q8_0.gguf 4\nstories-Q8_0[2].gguf 4\nstories-Q4_K_M.gguf 2'),
    gives: { '': ['Q8_0', 'stories-Q8_0.gguf'] }
  },
  {
    id: 'corral-host/Tiny-Chat',
    files: listing(`Q4_K_M/tiny-chat.gguf 2
      Q4_K_M/README.md 1k
      Q8_0/tiny-chat.gguf 4
      BF16/model.safetensors 8
      BF16/config.json 1k
      BF16/tokenizer.json 900k
      mine/tiny-chat.gguf 3`),
    gives: {
      '': ['Q8_0', 'Q8_0/tiny-chat.gguf'],
      Q4_K_M: ['Q4_K_M', 'Q4_K_M/tiny-chat.gguf', 'Q4_K_M/README.md'],
      bf16: ['BF16', 'BF16/model.safetensors', 'BF16/config.json', 'BF16/tokenizer.json'],
      mine: ['mine', 'mine/tiny-chat.gguf']
    }
  },
  // ---- SafeTensors
  {
    id: 'Qwen/Qwen3-0.6B',
    files: listing(`.gitattributes
      LICENSE 11k
      README.md 14k
      model.safetensors 1.5
      merges.txt 1670k
      vocab.json 2780k
      ${TOKENIZER}`),
    gives: {
      '': [
        undefined,
        'model.safetensors',
        ...['LICENSE', 'README.md', 'config.json', 'generation_config.json', 'merges.txt'],
        ...['tokenizer.json', 'tokenizer_config.json', 'vocab.json']
      ],
      Q4_K_M: /has no Q4_K_M: it has SafeTensors weights only.*corral convert Qwen\/Qwen3-0\.6B --dtype q4_k_m/
    }
  },
  {
    id: 'meta-llama/Llama-3.1-8B-Instruct',
    files: listing(`LICENSE 7k
      model[4].safetensors 16
      model.safetensors.index.json 24k
      original/consolidated.00.pth 16
      original/params.json 1k
      original/tokenizer.model 2180k
      special_tokens_map.json 1k
      ${TOKENIZER}`),
    weightsInIndex: [1, 2, 3, 4].map(index => `model-0000${index}-of-00004.safetensors`),
    gives: {
      '': [
        undefined,
        ...[1, 2, 3, 4].map(index => `model-0000${index}-of-00004.safetensors`),
        ...['LICENSE', 'config.json', 'generation_config.json', 'model.safetensors.index.json'],
        ...['special_tokens_map.json', 'tokenizer.json', 'tokenizer_config.json']
      ]
    }
  },
  {
    id: 'mistralai/Mistral-7B-Instruct-v0.3',
    files: listing(`consolidated.safetensors 14.5
      params.json 1k
      model[3].safetensors 14.5
      model.safetensors.index.json 24k
      tokenizer.model 587k
      tokenizer.model.v3 587k
      ${TOKENIZER}`),
    weightsInIndex: [1, 2, 3].map(index => `model-0000${index}-of-00003.safetensors`),
    gives: {
      '': [
        undefined,
        ...[1, 2, 3].map(index => `model-0000${index}-of-00003.safetensors`),
        ...['config.json', 'generation_config.json', 'model.safetensors.index.json', 'params.json', 'tokenizer.json'],
        ...['tokenizer.model', 'tokenizer.model.v3', 'tokenizer_config.json']
      ]
    }
  },
  {
    id: 'mistralai/Voxtral-Small-24B',
    files: listing('consolidated.safetensors 48\nparams.json 1k\ntekken.json 14900k\nREADME.md 9k'),
    gives: { '': /neither GGUF files nor whole SafeTensors weights.*layout of their maker's own/ }
  },
  {
    id: 'openai/gpt-oss-20b',
    files: listing(`metal/model.bin 13.8
      original/config.json 1k
      original/dtypes.json 13k
      original/model.safetensors 13.8
      model-{00000,00001,00002}-of-00002.safetensors 4.6
      model.safetensors.index.json 36k
      chat_template.jinja 16k
      special_tokens_map.json 1k
      ${TOKENIZER}`),
    weightsInIndex: [0, 1, 2].map(index => `model-0000${index}-of-00002.safetensors`),
    gives: {
      '': [
        undefined,
        ...[0, 1, 2].map(index => `model-0000${index}-of-00002.safetensors`),
        ...['chat_template.jinja', 'config.json', 'generation_config.json', 'model.safetensors.index.json'],
        ...['special_tokens_map.json', 'tokenizer.json', 'tokenizer_config.json']
      ]
    }
  },
  {
    id: 'sentence-transformers/all-MiniLM-L6-v2',
    files: listing(`1_Pooling/config.json 1k
      README.md 10k
      config.json 1k
      config_sentence_transformers.json 1k
      data_config.json 39k
      model.safetensors 0.0909
      modules.json 1k
      onnx/model.onnx 0.09
      openvino/openvino_model.bin 0.09
      pytorch_model.bin 0.0909
      rust_model.ot 0.09
      sentence_bert_config.json 1k
      special_tokens_map.json 1k
      tf_model.h5 0.091
      tokenizer.json 466k
      tokenizer_config.json 1k
      train_script.py 13k
      vocab.txt 232k`),
    gives: {
      '': [
        undefined,
        'model.safetensors',
        ...[
          '1_Pooling/config.json',
          'README.md',
          'config.json',
          'config_sentence_transformers.json',
          'data_config.json'
        ],
        ...['modules.json', 'sentence_bert_config.json', 'special_tokens_map.json', 'tokenizer.json'],
        ...['tokenizer_config.json', 'vocab.txt']
      ]
    }
  },
  {
    id: 'google/gemma-3-4b-it',
    files: listing(`model[2].safetensors 8.6
      model.safetensors.index.json 90k
      preprocessor_config.json 1k
      processor_config.json 1k
      chat_template.json 2k
      tokenizer.model 4690k
      ${TOKENIZER}`),
    weightsInIndex: [1, 2].map(index => `model-0000${index}-of-00002.safetensors`),
    gives: {
      '': [
        undefined,
        ...[1, 2].map(index => `model-0000${index}-of-00002.safetensors`),
        ...['chat_template.json', 'config.json', 'generation_config.json', 'model.safetensors.index.json'],
        ...['preprocessor_config.json', 'processor_config.json', 'tokenizer.json', 'tokenizer.model'],
        'tokenizer_config.json'
      ]
    }
  },
  {
    id: 'google/gemma-2b',
    files: listing(`gemma-2b.gguf 10
      model[2].safetensors 5
      model.safetensors.index.json 13k
      ${TOKENIZER}`),
    gives: { '': ['GGUF', 'gemma-2b.gguf', 'config.json'] }
  },
  {
    id: 'openai-community/gpt2',
    files: listing(`64.tflite 0.1
      flax_model.msgpack 0.5
      model.safetensors 0.548
      onnx/decoder_model.onnx 0.65
      pytorch_model.bin 0.548
      merges.txt 456k
      vocab.json 1040k
      ${TOKENIZER}`),
    gives: {
      '': [
        undefined,
        'model.safetensors',
        ...[
          'config.json',
          'generation_config.json',
          'merges.txt',
          'tokenizer.json',
          'tokenizer_config.json',
          'vocab.json'
        ]
      ]
    }
  },
  {
    id: 'someone/fp32-beside',
    files: listing(`model.safetensors 2
      model.fp32.safetensors 4
      model.fp16.safetensors 2
      ${TOKENIZER}`),
    gives: {
      '': [
        undefined,
        'model.safetensors',
        ...['config.json', 'generation_config.json', 'tokenizer.json', 'tokenizer_config.json']
      ]
    }
  },
  {
    id: 'mlx-community/Qwen3-4B-4bit',
    files: listing(`model.safetensors 2.3\nmodel.safetensors.index.json 60k\n${TOKENIZER}`),
    weightsInIndex: ['model.safetensors'],
    gives: { '': /Apple's MLX/ }
  },
  {
    id: 'someone/llama-lora',
    files: listing('adapter_config.json 1k\nadapter_model.safetensors 0.1\ntokenizer.json 900k\nconfig.json 1k'),
    gives: { '': /LoRA adapter/ }
  },
  {
    id: 'bigscience/bloom-560m-old',
    files: listing(`pytorch_model.bin 1.1\n${TOKENIZER}`),
    gives: { '': /pickled PyTorch files/ }
  },
  {
    id: 'stabilityai/stable-diffusion-xl-base-1.0',
    files: listing(`model_index.json 1k
      sd_xl_base_1.0.safetensors 6.9
      text_encoder/config.json 1k
      text_encoder/model.safetensors 0.5
      tokenizer/vocab.json 1060k
      unet/config.json 2k
      unet/diffusion_pytorch_model.safetensors 10
      vae/config.json 1k
      vae/diffusion_pytorch_model.safetensors 0.3`),
    gives: { '': /diffusion pipeline/ }
  },
  {
    id: 'onnx-community/Qwen3-0.6B-ONNX',
    files: listing(`onnx/model_q4.onnx 0.9\n${TOKENIZER}`),
    gives: { '': /ONNX files/ }
  },
  {
    id: 'someone/half-uploaded',
    files: listing(`model[3].safetensors 9\n${TOKENIZER}`).filter(file => !file.path.includes('00002-of')),
    gives: { '': /lacks model-00002-of-00003\.safetensors/ }
  },
  {
    id: 'someone/weights-without-tokenizer',
    files: listing('model.safetensors 2\nconfig.json 1k'),
    gives: { '': /lacks tokenizer\.json/ }
  },
  {
    id: 'someone/only-drafts-GGUF',
    files: listing('eagle3-Llama-3.1-8B-Q8_0.gguf 0.8\nmmproj-F16.gguf 0.8'),
    gives: { '': /drafts that run beside a main model, and a projector without its model/ }
  },
  { id: 'someone/empty', files: listing('.gitattributes\nREADME.md'), gives: { '': /files of the kinds/ } },
  { id: 'someone/nothing', files: [], gives: { '': /It holds no files/, Q4_K_M: /It holds no files/ } }
]
