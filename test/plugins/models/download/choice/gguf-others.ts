import { type Expectation, listing } from './listing.ts'

/** GGUF repositories with their publishers' own names and folders. */
export const GGUF_OTHERS: Expectation[] = [
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
      'llama-2-70b-chat.Q8_0.gguf-split-a': /is a piece of a split file/
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
    gives: { '': /pieces of split GGUF files.*importance matrix/, Q4_K_M: /pieces of split GGUF files/ }
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
  {
    id: 'o/TwoSizes-GGUF',
    files: listing('MiniCPM-0.5B-Q8_0.gguf 1\nMiniCPM-8B-Q4_K_M.gguf 5'),
    gives: {
      '': /has 2 models: MiniCPM-0\.5B-Q8_0 .*MiniCPM-8B-Q4_K_M/,
      Q4_K_M: ['MiniCPM-8B-Q4_K_M', 'MiniCPM-8B-Q4_K_M.gguf'],
      'MiniCPM-0.5B-Q8_0': ['MiniCPM-0.5B-Q8_0', 'MiniCPM-0.5B-Q8_0.gguf']
    }
  },
  {
    id: 'o/ThreeSizes-GGUF',
    files: listing('Qwen3-{0.6B,8B,30B-A3B}-Q8_0.gguf 1\nQwen3-{8B,30B-A3B}-UD-Q4_K_XL.gguf 1'),
    gives: { '': /has 5 models/, Q8_0: /3 models that match Q8_0/, Q4_K_XL: /2 models that match Q4_K_XL/ }
  },
  {
    id: 'o/folders-of-sizes',
    files: listing('7B/model-Q4_K_M.gguf 4\n13B/model-Q8_0.gguf 13\n13B/Q4_K_M/model.gguf 7'),
    gives: { '': /has 3 models/, Q4_K_M: /2 models that match Q4_K_M/ }
  },
  {
    id: 'o/folders-of-quantizations',
    files: listing('{Q4_K_M,UD-Q8_K_XL,BF16}/m-8b-@[2].gguf 4'),
    gives: { '': ['Q4_K_M', 'Q4_K_M/m-8b-Q4_K_M-00001-of-00002.gguf', 'Q4_K_M/m-8b-Q4_K_M-00002-of-00002.gguf'] }
  },
  {
    id: 'o/shards-of-two',
    files: listing('a-7b-Q4_K_M[2].gguf 4\nb-7b-Q8_0[2].gguf 8'),
    gives: { '': /has 2 models: b-7b-Q8_0 .*a-7b-Q4_K_M/ }
  },
  ...[
    'Qwen3-8B-Q4_K_M.gguf 5\nQwen3-8B-Thinking-Q8_0.gguf 8',
    'm-7b-instruct-Q4_K_M.gguf 4\nm-7b-base-Q8_0.gguf 8',
    'chat-7b-Q4_K_M.gguf 4\nnomic-embed-text-v1.5.Q8_0.gguf 0.1',
    'chat-7b-Q4_K_M.gguf 4\nbge-reranker-v2-m3-F16.gguf 1',
    'chat-7b-Q4_K_M.gguf 4\nchat-7b.gguf 14\nother-1b.gguf 1'
  ].map(
    (files): Expectation => ({ id: 'o/two-models', files: listing(files), gives: { '': /has \d models: .*Name one/ } })
  ),
  {
    id: 'o/a-label-and-a-folder',
    files: listing('Q8_0/a-7b.gguf 7\nb-7b-Q8_0.gguf 7\nc-7b-UD-Q8_0.gguf 7'),
    gives: { Q8_0: /3 models that match Q8_0: .*Q8_0\/a-7b\.gguf/, 'Q8_0/a-7b.gguf': ['Q8_0', 'Q8_0/a-7b.gguf'] }
  },
  {
    id: 'o/OuteTTS2-GGUF',
    files: listing('OuteTTS-0.2-500M-Q4_K_M.gguf 0.5\nWavTokenizer-Large-75-Q8_0.gguf 0.1\nggml-vocab-llama.gguf 0.01'),
    gives: { '': ['Q4_K_M', 'OuteTTS-0.2-500M-Q4_K_M.gguf'], Q8_0: /has no Q8_0/ }
  },
  {
    id: 'o/Drafts-GGUF',
    files: listing(`Qwen3.8-27B-Q4_K_M.gguf 16
      Qwen3.8-27B-Q4_K_M-mtp.gguf 1
      Qwen3.8-27B-mtp-Q8_0.gguf 1
      Qwen3.8-27B-draft-Q4_K_M.gguf 1
      Qwen3.8-27B-eagle3-Q8_0.gguf 1
      eagle3-Qwen3.8-27B.gguf 1
      dflash.gguf 1
      Qwen3.8-27B-dflash-F16.gguf 1`),
    gives: {
      '': ['Q4_K_M', 'Qwen3.8-27B-Q4_K_M.gguf'],
      Q4_K_M: ['Q4_K_M', 'Qwen3.8-27B-Q4_K_M.gguf'],
      Q8_0: /has no Q8_0\. It has Q4_K_M/,
      'Qwen3.8-27B-mtp-Q8_0': /is a draft model/
    }
  },
  {
    id: 'o/Whole-MTP-GGUF',
    files: listing('Qwen3.8-27B-MTP-{Q4_K_M:16,UD-Q8_K_XL:30}.gguf'),
    gives: { '': ['Q4_K_M', 'Qwen3.8-27B-MTP-Q4_K_M.gguf'] }
  },
  {
    id: 'o/Lora-GGUF',
    files: listing('my-lora-F16.gguf 0.1\nadapter_config.json'),
    gives: { '': /It has a LoRA adapter/, F16: /It has a LoRA adapter/, 'my-lora-F16.gguf': /is a LoRA adapter/ }
  },
  {
    id: 'o/Case-GGUF',
    files: listing('model-q4_k_m.gguf 2\nModel-Q4_K_M.gguf 2'),
    gives: {
      '': /2 models: Model-Q4_K_M .*model-q4_k_m-2/,
      Q4_K_M: /2 models that match/,
      'Model-Q4_K_M': ['Model-Q4_K_M', 'Model-Q4_K_M.gguf'],
      'model-q4_k_m-2': ['model-q4_k_m-2', 'model-q4_k_m.gguf'],
      'model-q4_k_m.gguf': ['model-q4_k_m-2', 'model-q4_k_m.gguf']
    }
  },
  {
    id: 'o/Flux-GGUF',
    files: listing('flux1-dev-Q4_0.gguf 7\nae.safetensors 0.3\nt5xxl-Q8_0.gguf 5\nclip_l-F16.gguf 0.2'),
    gives: {
      '': /It has a model that makes images/,
      Q4_0: /makes images/,
      't5xxl-Q8_0.gguf': /is a part of another model/
    }
  },
  {
    id: 'o/Empty-file-GGUF',
    files: [...listing('model-Q4_K_M.gguf 4\nmmproj-F16.gguf 0k'), { path: 'model-Q8_0.gguf', size: 0 }],
    gives: { '': ['Q4_K_M', 'model-Q4_K_M.gguf'], Q8_0: /model-Q8_0\.gguf is empty/ }
  },
  {
    id: 'o/foreign-projector',
    files: listing('chat-7b-Q4_K_M.gguf 4\nmmproj-other-13b-f16.gguf 1\nchat-7b.imatrix.gguf 0.1'),
    gives: { '': ['Q4_K_M', 'chat-7b-Q4_K_M.gguf'] }
  },
  {
    id: 'o/marks-of-those-who-quantize',
    files: listing('M-8B.i1-Q4_K_M.gguf 5\nM_8B-Q5_K_M-pure.gguf 6\nM-8B-UD-BF16.gguf 16\nM-8B-IQ2_M-2.7bpw.gguf 3'),
    gives: { '': ['Q5_K_M', 'M_8B-Q5_K_M-pure.gguf'] }
  }
]
