import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { demoModelFile, demoModelWith, randomAdapter, randomEncoder, randomProjector } from '../random-models.ts'

/** The models that llama.cpp's tests ask for by `--hf-repo` and `--hf-file`, with what stands in for each. */
export interface StandIn {
  repository: string
  /** Below the repository; the first part of a file in parts. */
  file: string
  /** Under which corral stores it: the name that llama-server's router gives it, where tests know that. */
  name: string
}

export const STAND_INS = {
  stories: {
    repository: 'ggml-org/test-model-stories260K',
    file: 'stories260K-F32.gguf',
    name: 'ggml-org/test-model-stories260K:F32'
  },
  infill: {
    repository: 'ggml-org/test-model-stories260K-infill',
    file: 'stories260K-infill-F32.gguf',
    name: 'ggml-org/test-model-stories260K-infill:F32'
  },
  seeing: {
    repository: 'ggml-org/tinygemma3-GGUF',
    file: 'tinygemma3-Q8_0.gguf',
    name: 'ggml-org/tinygemma3-GGUF:Q8_0'
  },
  moe: { repository: 'ggml-org/stories15M_MOE', file: 'stories15M_MOE-F16.gguf', name: 'ggml-org/stories15M_MOE' },
  embedding: {
    repository: 'ggml-org/models',
    file: 'bert-bge-small/ggml-model-f16.gguf',
    name: 'ggml-org/bert-bge-small'
  },
  reranker: {
    repository: 'ggml-org/models',
    file: 'jina-reranker-v1-tiny-en/ggml-model-f16.gguf',
    name: 'ggml-org/jina-reranker-v1-tiny-en'
  },
  split: {
    repository: 'ggml-org/models',
    file: 'tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf',
    name: 'ggml-org/stories15M-split'
  }
} satisfies Record<string, StandIn>

/** The data directory with those that llama-server's router finds in its cache, as far as the tests name them. */
export const ROUTER_HOME = 'router'
export const OF_ROUTER: StandIn[] = [STAND_INS.stories, STAND_INS.infill, STAND_INS.seeing]

/** What the tests have the router download. */
const DOWNLOADED = { repository: 'ggml-org/test-model-router-download', file: 'test-model-router-download-F16.gguf' }

/** Files that the tests look for in their folder `tmp`, and would else download. */
export const DOWNLOADS = { draft: 'stories15M-q4_0.gguf', adapter: 'moe_shakespeare15M.gguf' }

/**
 * Writes what stands in for the models: of corral's own demo model or with random weights, so that the tests' expected
 * texts and counts of tokens hold for nobody, while all else does.
 * @param folder repositories go below it, as a hub's emulator wants them
 * @param splitter llama.cpp's llama-gguf-split
 */
export function writeStandIns(folder: string, splitter: string): void {
  const place = ({ repository, file }: Pick<StandIn, 'repository' | 'file'>) => {
    const path = join(folder, repository, file)
    mkdirSync(dirname(path), { recursive: true })
    return path
  }
  for (const one of [STAND_INS.stories, STAND_INS.seeing, STAND_INS.moe, DOWNLOADED]) {
    writeFileSync(place(one), endless())
  }
  writeFileSync(place(STAND_INS.infill), endless(FILLS_IN))
  writeFileSync(place(STAND_INS.embedding), randomEncoder('embedding'))
  writeFileSync(place(STAND_INS.reranker), randomEncoder('reranker'))
  const { repository } = STAND_INS.seeing
  writeFileSync(place({ repository, file: 'mmproj-tinygemma3-Q8_0.gguf' }), randomProjector('vision'))
  const prefix = place(STAND_INS.split).replace('-00001-of-00003.gguf', '')
  const { status, stderr } = spawnSync(splitter, ['--split', '--split-max-tensors', '10', demoModelFile, prefix], {
    encoding: 'utf8'
  })
  if (status !== 0) throw new Error(`llama-gguf-split failed: ${stderr}`)
}

/** Writes what the tests look for in their folder `tmp`. */
export function writeDownloads(folder: string): void {
  mkdirSync(folder, { recursive: true })
  copyFileSync(demoModelFile, join(folder, DOWNLOADS.draft))
  writeFileSync(join(folder, DOWNLOADS.adapter), randomAdapter())
}

/** Tokens that the demo model knows as bytes: what fills in between texts need not be sensible. */
const FILLS_IN = {
  'tokenizer.ggml.fim_pre_token_id': 260,
  'tokenizer.ggml.fim_suf_token_id': 261,
  'tokenizer.ggml.fim_mid_token_id': 262
}
/** `</s>`, which the demo model never learned to say. */
const NEVER_SAID = 2

/** The demo model, but going on to the limit as the tests' models do. */
function endless(more = {}): Buffer {
  const model = demoModelWith({ 'tokenizer.ggml.eos_token_id': NEVER_SAID, ...more })
  // llama.cpp knows by their names that some tokens end answers.
  for (let at = model.indexOf(TURN_END); at !== -1; at = model.indexOf(TURN_END, at)) model.write(NO_END, at, 'latin1')
  return model
}
const TURN_END = '<|im_end|>'
const NO_END = '<|im_fin|>'
