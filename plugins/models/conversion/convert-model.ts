import { createWriteStream } from 'node:fs'
import { link, mkdir, mkdtemp, readFile, rename, rm, stat, symlink } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { type Static, Type } from 'typebox'
import type { ConversionTools } from '../../../core/contracts/builds.ts'
import type { ConvertedModel } from '../../../core/contracts/conversion.ts'
import type { Progress, Waiting } from '../../../core/contracts/progress.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import { readGguf } from '../../../core/models/gguf-file.ts'
import { runTool, ToolError } from '../../../core/system/child-process.ts'
import { diskRefusal, requireSpace } from '../../../core/system/disk-space.ts'
import { fileSize, namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { distrust, PYTHON_VARIABLES } from '../../../core/system/python/python-packages.ts'
import { synced } from '../../../core/system/synced.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import TYPES from './dtypes.json' with { type: 'json' }
import { type ConverterPython, classifyFailure } from './python-environment.ts'

interface ConversionJob {
  variant: StoredVariant
  plan: DtypePlan
  tools: ConversionTools
  /** Version of the build that llama-quantize belongs to. */
  engine: string
  python: ConverterPython
  log: ConversionLog
  env: NodeJS.ProcessEnv
  warn: (message: string) => void
  /** An empty folder on the disk of the models. It is removed afterwards. */
  folder: string
}

/** Converts a variant and publishes the result. Leaves nothing behind if it fails. */
export async function convertModel(job: ConversionJob, { signal, onProgress }: Required<Waiting>): Promise<void> {
  const { variant, plan, tools, python, folder } = job
  try {
    // A separate folder: inputs and intermediate files must not become part of the result.
    const work = join(folder, 'work')
    const result = join(folder, 'result')
    await mkdir(result, { recursive: true })
    const input = await linkInput(variant, work)
    const { name } = variant.model
    // If config.json is unusable, the converter's own message is better.
    const text = await readFile(join(input, 'config.json'), 'utf8').catch(() => '')
    const { value } = await parseUntrustedJson(text, { python: true })
    const hasMedia = isObject(value) && (isObject(value.vision_config) || isObject(value.audio_config))
    const steps = 1 + (hasMedia ? 1 : 0) + (plan.quantize ? 1 : 0)
    let step = 0
    const beginStep = (phase: Progress['phase'], total = 1) => {
      const number = ++step
      const report = (at: ToolProgress) =>
        onProgress({ phase, subject: '', fraction: at.completed / at.total, ...at, step: { number, of: steps } })
      report({ completed: 0, total: Math.max(1, Math.round(total)) })
      return report
    }
    const convert = (args: string[], report: (at: ToolProgress) => void) =>
      runConverter(job, work, [input, ...args], report, signal)

    const files: ConversionRecord['files'] = []
    const keep = async (file: string, role: 'model' | 'projector') => {
      const path = join(result, file)
      await checkResult(path, job)
      files.push({ name: file, size: (await stat(path)).size, role })
    }

    const modelFile = `${name}-${plan.dtype.toUpperCase()}.gguf`
    const converted = plan.quantize ? join(work, 'converted.gguf') : join(result, modelFile)
    const expected = ((variant.metadata.parameters ?? 0) * plan.bits.converted) / 8
    await convert(['--outfile', converted, '--outtype', plan.outtype], beginStep('converting', expected))
    if (plan.quantize) {
      const { size } = await stat(converted)
      const report = beginStep('quantizing', size)
      const args = [converted, join(result, modelFile), plan.quantize]
      const progress = quantizeProgress(size)
      await runLogged(job, tools.quantize!, args, { signal, progress, report })
      report({ completed: size, total: size })
      await rm(converted)
    }
    await keep(modelFile, 'model')
    if (hasMedia) {
      const projector = `mmproj-${name}-${plan.projectorOuttype.toUpperCase()}.gguf`
      const args = ['--mmproj', '--outfile', join(result, projector), '--outtype', plan.projectorOuttype]
      try {
        await convert(args, beginStep('converting'))
        await keep(projector, 'projector')
      } catch (error) {
        if (knownCause(error) !== 'unsupported-architecture') throw error
        await rm(join(result, projector), { force: true })
        job.warn(`${variant.publicName} will not see images or hear: llama.cpp cannot convert that part of it`)
      }
    }
    signal.throwIfAborted()
    await publish(variant, result, {
      dtype: plan.dtype,
      converter: tools.version,
      ...(plan.quantize && { quantize: job.engine }),
      files,
      createdAt: new Date().toISOString()
    })
  } catch (error) {
    if (signal.aborted) throw signal.reason
    if (knownCause(error) === 'python-packages' && python.environment) await distrust(python.environment)
    throw withContext(error, job)
  } finally {
    await discard(folder)
  }
}

/** Links the files that the converter may read. Code and pickled weights are left out: it would run them. */
async function linkInput(variant: StoredVariant, work: string): Promise<string> {
  const input = join(work, variant.model.name)
  for (const { path } of variant.files) {
    if (/\.(py|pyc|bin|pt|pth|pkl|ckpt)$/i.test(path)) continue
    const source = join(variant.directory, ...path.split('/'))
    await linkFile(source, join(input, ...path.split('/')))
  }
  return input
}

async function linkFile(source: string, target: string): Promise<void> {
  await mkdir(dirname(target), { recursive: true })
  await symlink(source, target).catch(async error => {
    // Windows requires a privilege for symbolic links, but not for hard links.
    if (!isSystemError(error, 'EPERM', 'ENOSYS')) throw error
    await link(source, target)
  })
}

async function runConverter(
  job: ConversionJob,
  work: string,
  args: string[],
  report: (at: ToolProgress) => void,
  signal: AbortSignal
): Promise<void> {
  const script = join(job.tools.directory, 'convert_hf_to_gguf.py')
  const dense = job.variant.files.some(({ path }) => /^\d+_Dense\/model\.safetensors$/.test(path))
  const more = dense && !args.includes('--mmproj') ? ['--sentence-transformers-dense-modules'] : []
  await runLogged(job, job.python.executable, [script, ...args, ...more], {
    variables: {
      ...PYTHON_VARIABLES,
      // The converter reads untrusted input, so it must not see the user's home folder.
      HOME: work,
      USERPROFILE: work,
      // Stay offline, and ignore code that an earlier download left in a cache.
      HF_HUB_OFFLINE: '1',
      TRANSFORMERS_OFFLINE: '1',
      HF_HUB_DISABLE_TELEMETRY: '1',
      HF_HOME: join(work, 'hugging-face'),
      PYTHONDONTWRITEBYTECODE: '1'
    },
    signal,
    progress: converterProgress,
    report
  })
}

/** @throws CorralError with the known `cause` in its details */
async function runLogged(
  { log, env }: { log?: ConversionLog; env: NodeJS.ProcessEnv },
  command: string,
  args: string[],
  options: {
    variables?: Record<string, string>
    signal: AbortSignal | undefined
    progress: (line: string) => ToolProgress | undefined
    report: (at: ToolProgress) => void
  }
): Promise<void> {
  const { variables, signal, progress, report } = options
  log?.line(`$ ${[command, ...args].join(' ')}`)
  const onLine = (line: string) => {
    const at = progress(line)
    if (at) report(at)
    else log?.line(line)
  }
  try {
    await runTool(command, args, { env, variables, signal, onLine })
  } catch (error) {
    if (!(error instanceof ToolError)) throw error
    log?.line(error.message)
    const { cause, code, sentence } = classifyFailure(error)
    const message = cause === 'unknown' ? `${error.message} ${sentence}` : sentence
    throw new CorralError(code, message, { cause: error, details: { cause } })
  }
}

async function checkResult(path: string, { log }: ConversionJob): Promise<void> {
  try {
    await readGguf(path)
  } catch (cause) {
    log.line(errorMessage(cause))
    const message = `The tools did not write a complete GGUF: ${errorMessage(cause)}`
    throw new CorralError('conversion_failed', message, { cause })
  }
}

const knownCause = (error: unknown) => (error instanceof CorralError ? error.details?.cause : undefined)

function withContext(cause: unknown, { variant, plan, log }: ConversionJob): unknown {
  const what = `Model "${variant.publicName}" could not be converted to ${plan.dtype}`
  const refusal = diskRefusal(cause, what, 'models')
  if (refusal) return refusal
  if (!(cause instanceof CorralError)) {
    return new CorralError('conversion_failed', `${what}: ${errorMessage(cause)} (log: ${log.path})`, { cause })
  }
  return new CorralError(cause.code, `${what}. ${cause.message} (log: ${log.path})`, {
    cause,
    details: { ...cause.details, log: log.path }
  })
}

interface ToolProgress {
  completed: number
  total: number
}

const FACTORS: Record<string, number> = { '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12 }
const bytes = (number: string, unit: string) => Math.round(Number(number) * FACTORS[unit]!)

/**
 * Parses a line of the converter's progress bar, for example `Writing: 71%|███████ | 2.89M/4.07M [00:00<00:00,
 * 44.4Mbyte/s]`. Returns undefined for any other line.
 */
export function converterProgress(line: string): ToolProgress | undefined {
  const match = /\bWriting:\s+\d+%\|.*\|\s*([\d.]+)([kMGT]?)\/([\d.]+)([kMGT]?) \[/.exec(line)
  if (!match) return undefined
  const total = bytes(match[3]!, match[4]!)
  return total > 0 ? { completed: Math.min(bytes(match[1]!, match[2]!), total), total } : undefined
}

const TYPE_BYTES: Record<string, number> = { f32: 4, f16: 2, bf16: 2 }

/**
 * Returns a function that tracks llama-quantize by its lines, one before each tensor, for example `[ 2/ 29]
 * token_embd.weight - [ 256, 1024, 1, 1], type = f16, converting to q6_K .. size = …`. Tensors are weighted by their
 * bytes: the embedding alone may be a fifth of a model.
 * @param total bytes of the file that is quantized
 */
export function quantizeProgress(total: number): (line: string) => ToolProgress | undefined {
  let before = 0
  let current = 0
  return line => {
    const match = /^\[\s*\d+\/\s*\d+\]\s+\S+\s+- \[([\d, ]+)\], type =\s*(\w+)/.exec(line)
    if (!match) return undefined
    before += current
    current = match[1]!.split(',').reduce((product, length) => product * Number(length), TYPE_BYTES[match[2]!] ?? 0)
    return { completed: Math.min(before, total), total }
  }
}

const MAX_LOG_CHARACTERS = 4e6

type ConversionLog = Awaited<ReturnType<typeof openConversionLog>>

/** Opens a log for the tools' output. It replaces the last log for the same variant and type. */
export async function openConversionLog(logs: string, variant: StoredVariant, dtype: string) {
  await mkdir(logs, { recursive: true })
  const { owner, name } = variant.model
  const path = join(logs, `conversion-${owner}-${name}-${variant.label}-${dtype}.log`)
  const stream = createWriteStream(path)
  // If the disk is full, the conversion must fail with a message about that, not its log.
  stream.on('error', () => {})
  let written = 0
  return {
    path,
    line(text: string) {
      if (stream.destroyed || written > MAX_LOG_CHARACTERS) return
      written += text.length + 1
      stream.write(written > MAX_LOG_CHARACTERS ? '(The rest is left out.)\n' : `${text}\n`)
    },
    close: () =>
      new Promise<void>(resolve => {
        if (stream.closed) return resolve()
        stream.once('close', resolve)
        stream.end()
      })
  }
}

/** F32, F16 and BF16. Only these types are quantized: quantizing twice would lose quality twice. */
const UNQUANTIZED: readonly unknown[] = [0, 1, 32]

/** See `Conversion.quantize`. @param tool path of llama-quantize; undefined if the build does not include it */
export async function quantizeGguf(
  tool: string | undefined,
  { shards, target, dtype }: { shards: readonly { source: string; path: string }[]; target: string; dtype: string },
  { signal, onProgress }: Waiting
): Promise<void> {
  const plan = planDtype(dtype, undefined)
  const { metadata } = await readGguf(shards[0]!.source)
  if (!UNQUANTIZED.includes(metadata['general.file_type'])) {
    throw new CorralError(
      'invalid_request',
      `Only weights in F16, F32 or BF16 can be quantized. Those of ${basename(shards[0]!.path)} are already quantized and would ` +
        'lose quality twice. Use the model in F16, or pull it in the quantization that you want.',
      { param: 'quantize' }
    )
  }
  if (tool === undefined) {
    throw new CorralError(
      'runtime_missing',
      `Quantizing to ${plan.dtype} needs llama-quantize, and the llama.cpp build in use does not include it. ` +
        'Use a build that includes it (corral doctor shows the builds).'
    )
  }
  let size = 0
  for (const { source } of shards) size += (await stat(source)).size
  await requireSpace(dirname(target), size, `Quantizing to ${plan.dtype} needs up to`, 'models')
  const report = (at: ToolProgress) =>
    onProgress?.({ phase: 'quantizing', subject: '', fraction: at.completed / at.total, ...at })
  report({ completed: 0, total: size })
  const input = await mkdtemp(`${target}-input-`)
  try {
    for (const { source, path } of shards) await linkFile(source, join(input, basename(path)))
    const first = join(input, basename(shards[0]!.path))
    const args = [first, target, plan.dtype.toUpperCase()]
    await runLogged(process, tool, args, { signal, progress: quantizeProgress(size), report })
    await readGguf(target)
    report({ completed: size, total: size })
  } catch (error) {
    await rm(target, { force: true })
    if (signal?.aborted) throw signal.reason
    if (knownCause(error) === undefined) throw error
    const { code, message, details = {} } = error as CorralError
    const what = `The weights could not be quantized to ${plan.dtype}. ${message}`
    throw new CorralError(code, what, { cause: error, details })
  } finally {
    await rm(input, { recursive: true, force: true })
  }
}

/** Beside a variant's own files. Everything below belongs to the conversion. */
const FOLDER = 'converted'
const RECORD = 'conversion.json'
const FORMAT = 1

const FileName = Type.String({ pattern: '^[^/\\\\:\\u0000]+$' })
const RecordSchema = Type.Object({
  format: Type.Literal(FORMAT),
  dtype: Type.String(),
  converter: Type.String(),
  /** Version of llama.cpp whose llama-quantize was used, if any. */
  quantize: Type.Optional(Type.String()),
  files: Type.Array(
    Type.Object({
      name: FileName,
      size: Type.Integer({ minimum: 1 }),
      role: Type.Enum(['model', 'projector'])
    }),
    { minItems: 1 }
  ),
  createdAt: Type.String()
})
export type ConversionRecord = Static<typeof RecordSchema>

type Variant = Pick<StoredVariant, 'directory'>
const root = ({ directory }: Variant) => join(directory, FOLDER)

/** Returns a variant's conversion to a type, or undefined if it does not exist or is incomplete. */
export async function findConverted(variant: Variant, dtype: string): Promise<ConvertedModel | undefined> {
  const folder = join(root(variant), dtype)
  const record = (await readJsonFile(join(folder, RECORD), RecordSchema))?.value
  if (record?.dtype !== dtype) return undefined
  for (const { name, size } of record.files) {
    if ((await fileSize(join(folder, name))) !== size) return undefined
  }
  const find = (wanted: 'model' | 'projector') => record.files.find(({ role }) => role === wanted)?.name
  const [model, projector] = [find('model'), find('projector')]
  if (model === undefined) return undefined
  const size = record.files.reduce((sum, file) => sum + file.size, 0)
  const { createdAt, converter } = record
  const projectorPath = projector && { projectorPath: join(folder, projector) }
  return { dtype, modelPath: join(folder, model), ...projectorPath, size, createdAt, converter }
}

export async function listConverted(variant: Variant): Promise<ConvertedModel[]> {
  const dtypes = (await namesIn(root(variant))).filter(name => !name.startsWith('.')).sort()
  const found = await Promise.all(dtypes.map(dtype => findConverted(variant, dtype)))
  return found.filter(model => model !== undefined)
}

/** Publishes a folder with exactly these files as a conversion. The last step is a single rename. */
export async function publish(variant: StoredVariant, folder: string, record: Omit<ConversionRecord, 'format'>) {
  for (const { name } of record.files) await synced(join(folder, name), 'file')
  await writeJsonFile(join(folder, RECORD), { format: FORMAT, ...record }, { pretty: true })
  await removeConverted(variant, record.dtype)
  await mkdir(root(variant), { recursive: true })
  await rename(folder, join(root(variant), record.dtype))
}

/** Removes the record first: without it, the rest of an interrupted removal does not count as a conversion. */
export async function removeConverted(variant: StoredVariant, dtype: string): Promise<void> {
  const folder = join(root(variant), dtype)
  await rm(join(folder, RECORD), { force: true })
  await discard(folder)
}

export async function discard(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true, maxRetries: 3 })
}

export interface DtypePlan {
  /** The canonical name in lower case, which also names the folder. */
  dtype: string
  /** Type that the converter writes (`--outtype`). */
  outtype: string
  /** Type that llama-quantize then produces, if that step is needed. */
  quantize?: string
  projectorOuttype: string
  bits: { converted: number; result: number }
}

/** Types with their bits per weight: types of the converter, and of llama-quantize (generous estimates). */
const { direct: DIRECT, quantized: QUANTIZED } = TYPES

const ALIASES: Record<string, string> = { q3_k: 'q3_k_m', q4_k: 'q4_k_m', q5_k: 'q5_k_m' }

/** Types so coarse that llama-quantize requires an importance matrix. */
const NEEDS_IMATRIX = ['iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq2_m', 'iq3_xxs', 'iq3_xs', 'q2_k_s']

export const DTYPES: readonly string[] = [...Object.keys(DIRECT), ...Object.keys(QUANTIZED)]
const BITS = new Map(Object.entries({ ...DIRECT, ...QUANTIZED }))

/** @param ownType the type of most of the model's weights, for example `BF16` @throws CorralError `invalid_option` */
export function planDtype(dtype: string, ownType: string | undefined): DtypePlan {
  const lower = dtype.toLowerCase()
  const name = ALIASES[lower] ?? lower
  if (NEEDS_IMATRIX.includes(name)) {
    throw new CorralError(
      'invalid_option',
      `Option "dtype" cannot be ${name}: a type this coarse needs an importance matrix, which corral does not make. ` +
        'Import a GGUF of this type that was made with one, or use q2_k or iq3_s.',
      { param: 'dtype' }
    )
  }
  const result = BITS.get(name)
  if (result === undefined) {
    throw new CorralError(
      'invalid_option',
      `Option "dtype" cannot be ${JSON.stringify(dtype)}. The types are ${DTYPES.join(', ')}.`,
      { param: 'dtype' }
    )
  }
  const projectorOuttype = name === 'f32' || name === 'bf16' ? name : 'f16'
  if (Object.hasOwn(DIRECT, name)) {
    return { dtype: name, outtype: name, projectorOuttype, bits: { converted: result, result } }
  }
  // A BF16 weight may be outside the range of F16.
  const outtype = ownType?.toLowerCase() === 'bf16' ? 'bf16' : 'f16'
  return { dtype: name, outtype, quantize: name.toUpperCase(), projectorOuttype, bits: { converted: 16, result } }
}

/** Vocabulary and metadata, which are not part of the weights. */
const OVERHEAD_BYTES = 16e6
/** Norms and similar tensors stay finer than the type. */
const MARGIN = 1.03

/** Estimates the bytes that a conversion needs, intermediate files included. */
export function requiredDiskBytes(plan: DtypePlan, parameters: number): number {
  const converted = (parameters * plan.bits.converted) / 8
  const result = plan.quantize ? (parameters * plan.bits.result) / 8 : 0
  return Math.ceil((converted + result) * MARGIN + OVERHEAD_BYTES)
}

/** Returns the architectures in a config.json that the converter looks up: the model's and its text model's. */
export function modelArchitectures(config: unknown): string[] {
  const sections = isObject(config) ? [config, config.text_config] : []
  return sections.flatMap(section => {
    const first: unknown =
      isObject(section) && Array.isArray(section.architectures) ? section.architectures[0] : undefined
    return typeof first === 'string' ? [first] : []
  })
}

/** Returns the architectures that llama.cpp's converter supports. Undefined if its source has no known list. */
export async function supportedArchitectures(folder: string): Promise<Set<string> | undefined> {
  const read = (...path: string[]) => readFile(join(folder, ...path), 'utf8').catch(() => '')
  const [, map = ''] = /^TEXT_MODEL_MAP\b[^{]*\{([^}]*)\}/m.exec(await read('conversion', '__init__.py')) ?? []
  const named = [...map.matchAll(/"([^"]+)":/g)].map(([, name]) => name!)
  if (named.length > 0) return new Set(named)
  // Older converters are one script in which each class registers its architectures.
  const script = await read('convert_hf_to_gguf.py')
  const registered = [...script.matchAll(/^@(?:ModelBase|Model)\.register\(([^)]*)\)/gm)]
  const names = registered.flatMap(([, list]) => [...list!.matchAll(/"([^"]+)"/g)].map(([, name]) => name!))
  return names.length > 0 ? new Set(names) : undefined
}
