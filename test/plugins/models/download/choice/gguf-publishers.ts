import { type Expectation, listing } from './listing.ts'

const BARTOWSKI_8B =
  '{IQ2_M:2.95,Q2_K:3.18,IQ3_XS:3.52,Q3_K_L:4.32,IQ4_XS:4.45,Q4_0:4.66,Q4_0_4_4:4.66,Q4_0_8_8:4.66,Q4_K_S:4.69,Q4_K_M:4.92,Q4_K_L:5.31,Q5_K_M:5.73,Q5_K_L:6.06,Q6_K:6.6,Q6_K_L:6.85,Q8_0:8.54,f32:32.1}'
const UNSLOTH =
  '{IQ4_NL,IQ4_XS,Q2_K,Q3_K_M,Q4_0,Q4_1,Q4_K_M,Q4_K_S,Q5_K_M,Q6_K,Q8_0,UD-IQ1_M,UD-IQ2_XXS,UD-Q2_K_XL,UD-Q3_K_XL,UD-Q4_K_XL,UD-Q5_K_XL,UD-Q6_K_XL,UD-Q8_K_XL,BF16}'

/** Repositories of publishers with many GGUF files (file names, approximate sizes). */
export const GGUF_PUBLISHERS: Expectation[] = [
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
      'UD-Q4_K_M': /2 models that match UD-Q4_K_M/,
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
      Q4_0: /3 models that match Q4_0/
    }
  }
]
