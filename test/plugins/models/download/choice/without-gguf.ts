import { type Expectation, listing } from './listing.ts'

const TOKENIZER = `tokenizer.json 11000k
tokenizer_config.json 10k
generation_config.json 1k
config.json 1k`

/** Repositories with SafeTensors, with unsupported formats, and incomplete ones. */
export const WITHOUT_GGUF: Expectation[] = [
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
      Q4_K_M: /has no Q4_K_M, only SafeTensors weights.*corral convert Qwen\/Qwen3-0\.6B --dtype q4_k_m/
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
    gives: { '': /neither GGUF files nor complete SafeTensors weights.*their maker's own layout/ }
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
    gives: { '': /draft models, which run beside a main model, and a projector without its model/ }
  },
  { id: 'someone/empty', files: listing('.gitattributes\nREADME.md'), gives: { '': /files with the extensions/ } },
  { id: 'someone/nothing', files: [], gives: { '': /It has no files/, Q4_K_M: /It has no files/ } }
]
