import { basename, toNamespacedPath, win32 } from 'node:path'
import type { EngineSettings } from '../../core/config/model-settings.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import type { LoadOptions } from '../../core/models/load-options.ts'
import type { EngineBounds, LaunchSpec } from './launch-spec.ts'

/** llama-server's own default for `--ubatch-size`, and the step of its context sizes. */
const DEFAULT_BATCH = 512
const CONTEXT_STEP = 256
/** Tokens. llama-server processes two to warm up, and fails with a context smaller than this. */
const MIN_CONTEXT = 16

/**
 * Returns the tokens of a batch for embeddings or rerankings. A text must fit in one batch, and llama.cpp's mean
 * pooling aborts unless the slots share it evenly.
 */
export function pooledBatch({ num_ctx, num_parallel }: Pick<LoadOptions, 'num_ctx' | 'num_parallel'>): number {
  const tokens = Math.max(DEFAULT_BATCH, Math.ceil(num_ctx / CONTEXT_STEP) * CONTEXT_STEP)
  return Math.ceil(tokens / num_parallel) * num_parallel
}

/** The address of an engine: a Unix socket, or a TCP port on the loopback interface. */
export type Listen = { socketPath: string } | { host: string; port: number }

export interface ArgumentSettings {
  listen: Listen
  /** The engine's working folder. */
  folder?: string | undefined
  /** A file with the chat template to use instead of the model's own. */
  templateFile?: string | undefined
  /** The flags that the build's `--help` names. If undefined, the build is assumed to know all flags. */
  knownFlags?: ReadonlySet<string> | undefined
  /** Added last, so that they win. */
  extra?: readonly string[]
}

const STREAM_PING_S = 10
/** Threads for connections in addition to two for each slot: one for an answer, one for other requests meanwhile. */
const MORE_THREADS = 8

/** Values of GGUF's `<architecture>.pooling_type` that give one vector per text. */
const POOLING: Record<number, string> = { 1: 'mean', 2: 'cls', 3: 'last' }

/**
 * Returns the kind of pooling. In a decoder made for embeddings, only the last token has seen the whole text. This
 * matters if it was converted before the kind of pooling was recorded. For encoders and chat models the mean of all
 * tokens is used.
 */
function getPooling({ metadata, format }: StoredVariant): string {
  const { architecture, info, capabilities } = metadata
  // T5's encoder is the only one whose files do not record that its attention is bidirectional.
  const bidirectional = info[`${architecture}.attention.causal`] === false || architecture === 't5encoder'
  const otherwise = format === 'gguf' && !bidirectional && capabilities.includes('embedding') ? 'last' : 'mean'
  return POOLING[Number(info[`${architecture}.pooling_type`])] ?? otherwise
}

/** Windows opens a path of 260 characters only in its extended form, which Node.js uses itself. */
const openable = (path: string) => (path.length < 260 ? path : toNamespacedPath(path))

/**
 * Returns a path as llama-server gets it, from its working folder. On Windows the colon of a drive ends some values, and
 * llama.cpp reads some paths in the code page, in which letters beyond ASCII differ.
 */
export const fromFolder = (folder: string, path: string) =>
  /^[a-z]:\\/i.test(path) ? win32.relative(folder, path) : path

/** Builds the command line of an engine. Everything that decides how it works is explicit, if the build knows it. */
export function engineArguments(spec: LaunchSpec, settings: ArgumentSettings): string[] {
  const { listen, knownFlags, folder = '' } = settings
  const { options, mode } = spec
  const knows = (flag: string) => knownFlags === undefined || knownFlags.has(flag)
  const where =
    'socketPath' in listen ? ['--host', listen.socketPath] : ['--host', listen.host, '--port', `${listen.port}`]

  const list = ['--model', openable(spec.modelPath)]
  if (spec.projectorPath !== undefined) list.push('--mmproj', openable(spec.projectorPath))
  list.push(...where, '--alias', spec.alias)
  const context = Math.max(MIN_CONTEXT, options.num_ctx * options.num_parallel)
  list.push('--ctx-size', `${context}`, '--parallel', `${options.num_parallel}`)
  list.push('--cache-type-k', options.cache_type_k, '--cache-type-v', options.cache_type_v)
  if (options.n_gpu_layers >= 0) list.push('--n-gpu-layers', `${options.n_gpu_layers}`)
  if (spec.workers?.length) {
    if (!knows('--rpc')) throw withoutRpc(spec.alias)
    list.push('--rpc', spec.workers.map(({ endpoint }) => endpoint).join(','))
  }

  if (mode === 'chat') {
    if (knows('--jinja')) list.push('--jinja')
    if (settings.templateFile !== undefined)
      list.push('--chat-template-file', fromFolder(folder, settings.templateFile))
  } else {
    const batch = pooledBatch(options)
    if (mode === 'embedding') list.push('--embeddings', '--pooling', getPooling(spec.variant))
    else list.push('--rerank')
    list.push('--batch-size', `${batch}`, '--ubatch-size', `${batch}`)
    // If each slot has a separate cache, llama.cpp truncates texts in the same batch to the length of the shortest, and
    // mean and first-token pooling use only the last piece.
    if (knows('--kv-unified')) list.push('--kv-unified')
    if (knows('--kv-unified-per-slot')) list.push('--kv-unified-per-slot', `${options.num_ctx}`)
  }

  if (spec.bounds) list.push(...boundArguments(spec.bounds, knows))
  if (knows('--no-ui')) list.push('--no-ui')
  else if (knows('--no-webui')) list.push('--no-webui')
  if (knows('--offline')) list.push('--offline')
  if (knows('--sse-ping-interval')) list.push('--sse-ping-interval', `${STREAM_PING_S}`)
  if (knows('--log-jsonl')) list.push('--log-jsonl')
  if (knows('--threads-http')) list.push('--threads-http', `${2 * options.num_parallel + MORE_THREADS}`)
  if (spec.slotFolder !== undefined) {
    // llama-server concatenates it with file names.
    list.push('--slot-save-path', `${fromFolder(folder, spec.slotFolder)}/`)
  }
  // Its speed decides whether restoring a saved prompt pays off, and how tokens are guessed ahead.
  if (mode === 'chat' && knows('--metrics')) list.push('--metrics')
  const own = spec.settings
  if (own) {
    list.push(...loraArguments(own.loras, folder))
    // Embeddings are not generated token by token.
    if (mode === 'chat' && knows('--spec-type')) list.push(...speculationArguments(own.speculation))
  }
  list.push(...(settings.extra ?? []), ...(own?.arguments ?? []))
  // llama-server's cache of earlier prompts ignores owners, so it stays off whatever flags the configuration adds.
  if (knows('--cache-ram')) list.push('--cache-ram', '0')
  // Otherwise it warns of this at each start.
  if (knows('--no-cache-idle-slots')) list.push('--no-cache-idle-slots')
  return list
}

/** Returns how many connections a llama-server with these arguments certainly serves in parallel. 0 if unknown. */
export function httpThreads(list: readonly string[]): number {
  const at = list.lastIndexOf('--threads-http')
  return at === -1 ? 0 : Math.max(0, Number(list[at + 1]) || 0)
}

function withoutRpc(alias: string): CorralError {
  const details = { cause: 'unknown_flag' }
  const message = `The model "${alias}" could not be loaded: this llama.cpp build has no RPC, which its workers ("rpc" in its settings) need. Choose another build (corral runtime list).`
  return new CorralError('load_failed', message, { details })
}

const mebibytes = (bytes: number) => Math.floor(bytes / 2 ** 20)

function boundArguments({ checkpoints, deviceMargins, shares }: EngineBounds, knows: (flag: string) => boolean) {
  const list: string[] = []
  if (knows('--ctx-checkpoints')) list.push('--ctx-checkpoints', `${checkpoints}`)
  if (deviceMargins?.length && knows('--fit-target')) {
    list.push('--fit-target', deviceMargins.map(mebibytes).join(','))
  }
  if (shares?.length) list.push('--tensor-split', shares.map(mebibytes).join(','))
  return list
}

/** llama-server's `common/arg.cpp` expects comma-separated values, with a scale after each file and a colon. */
function loraArguments(loras: EngineSettings['loras'], folder: string): string[] {
  const cell = (text: string) => (/[",]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)
  const plain = loras.filter(({ scale }) => scale === 1)
  const scaled = loras.flatMap(({ path, scale }) => (scale === 1 ? [] : [{ path: fromFolder(folder, path), scale }]))
  const colon = scaled.find(({ path }) => path.includes(':'))
  if (colon) {
    const message = `llama-server cannot scale the LoRA adapter ${colon.path}, since its path contains a colon. Move it to another folder.`
    throw new CorralError('load_failed', message)
  }
  return [
    ...(plain.length > 0 ? ['--lora', plain.map(({ path }) => cell(path)).join(',')] : []),
    ...(scaled.length > 0 ? ['--lora-scaled', scaled.map(({ path, scale }) => cell(`${path}:${scale}`)).join(',')] : [])
  ]
}

/** Tokens to guess in one step from the conversation, as llama.cpp's documentation advises. Its default is 3. */
const NGRAM_GUESS = 64

function speculationArguments({ ngram, mtp, companion, draft }: EngineSettings['speculation']): string[] {
  const list: string[] = []
  if (draft?.modelPath !== undefined) {
    list.push('--model-draft', openable(draft.modelPath))
    if (draft.min_tokens !== undefined) list.push('--spec-draft-n-min', `${draft.min_tokens}`)
    if (draft.min_probability !== undefined) list.push('--spec-draft-p-min', `${draft.min_probability}`)
    if (draft.n_gpu_layers !== undefined && draft.n_gpu_layers >= 0)
      list.push('--n-gpu-layers-draft', `${draft.n_gpu_layers}`)
  }
  // llama-server reads the kind of draft model from its file.
  if (companion !== undefined) {
    // Except for some kinds that come with a model. Their names follow the convention of llama.cpp's downloads.
    const [kind = 'mtp'] = /eagle3|dflash|dspark/i.exec(basename(companion)) ?? []
    list.push('--model-draft', companion, '--spec-type', `draft-${kind.toLowerCase()}`)
  }
  if (mtp) list.push('--spec-type', 'draft-mtp')
  if (ngram) list.push('--spec-type', draft ? 'draft-simple,ngram-map-k' : 'ngram-map-k')
  const most = draft?.max_tokens ?? (ngram && !draft ? NGRAM_GUESS : undefined)
  if (most !== undefined) list.push('--spec-draft-n-max', `${most}`)
  return list
}
