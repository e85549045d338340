import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { demoModelFile, demoModelWith, randomAdapter, randomEncoder, randomProjector } from '../random-models.ts'

/** The models that llama.cpp's tests request with `--hf-repo` and `--hf-file`, and their stand-ins. */
export interface StandIn {
  repository: string
  /** Path in the repository, or the first part of a split file. */
  file: string
  /** Name in corral: the name used by llama-server's router if tests rely on it. */
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

/** The data directory with the models that the tests expect in the router's cache. */
export const ROUTER_HOME = 'router'
export const OF_ROUTER: StandIn[] = [STAND_INS.stories, STAND_INS.infill, STAND_INS.seeing]

/** The model that the tests download through the router. */
const DOWNLOADED = { repository: 'ggml-org/test-model-router-download', file: 'test-model-router-download-F16.gguf' }

/** Files that the tests expect in their `tmp` folder, and would otherwise download. */
export const DOWNLOADS = { draft: 'stories15M-q4_0.gguf', adapter: 'moe_shakespeare15M.gguf' }

/**
 * Writes the stand-ins: the demo model, or random weights. The tests' expected texts and token counts match on no
 * server, but everything else does.
 * @param folder root of the hub emulator's repositories
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

export function writeDownloads(folder: string): void {
  mkdirSync(folder, { recursive: true })
  copyFileSync(demoModelFile, join(folder, DOWNLOADS.draft))
  writeFileSync(join(folder, DOWNLOADS.adapter), randomAdapter())
}

/** Byte tokens of the demo model. The filler text need not make sense. */
const FILLS_IN = {
  'tokenizer.ggml.fim_pre_token_id': 260,
  'tokenizer.ggml.fim_suf_token_id': 261,
  'tokenizer.ggml.fim_mid_token_id': 262
}
/** `</s>`, which the demo model never generates. */
const NEVER_SAID = 2

/** The demo model changed to generate until the limit, like the tests' models. */
function endless(more = {}): Buffer {
  const model = demoModelWith({ 'tokenizer.ggml.eos_token_id': NEVER_SAID, ...more })
  // llama.cpp recognizes end-of-answer tokens by name.
  for (let at = model.indexOf(TURN_END); at !== -1; at = model.indexOf(TURN_END, at)) model.write(NO_END, at, 'latin1')
  return model
}
const TURN_END = '<|im_end|>'
const NO_END = '<|im_fin|>'
