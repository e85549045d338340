import { mkdtemp, rm, stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { readGguf } from '../../../core/models/gguf-file.ts'
import { runTool, ToolError } from '../../../core/system/child-process.ts'
import { requireSpace } from '../../../core/system/disk-space.ts'
import { linkFile, quantizeProgress } from './convert-model.ts'
import { planDtype } from './dtypes.ts'
import { classifyFailure } from './failures.ts'

/** Only these types are quantized: quantizing twice would lose quality twice. */
const UNQUANTIZED = new Map<unknown, string>([
  [0, 'F32'],
  [1, 'F16'],
  [32, 'BF16']
])

/** See `Conversion.quantize`. @param tool path of llama-quantize; undefined if the build does not include it */
export async function quantizeGguf(
  tool: string | undefined,
  { shards, target, dtype }: { shards: readonly { source: string; path: string }[]; target: string; dtype: string },
  { signal, onProgress }: Waiting
): Promise<void> {
  const plan = planDtype(dtype, undefined)
  const { metadata } = await readGguf(shards[0]!.source)
  if (!UNQUANTIZED.has(metadata['general.file_type'])) {
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
  const progress = quantizeProgress(size)
  const report = (completed: number) =>
    onProgress?.({ phase: 'quantizing', subject: '', fraction: completed / size, completed, total: size })
  report(0)
  const onLine = (line: string) => {
    const at = progress(line)
    if (at) report(at.completed)
  }
  const input = await mkdtemp(`${target}-input-`)
  try {
    for (const { source, path } of shards) await linkFile(source, join(input, basename(path)))
    const first = join(input, basename(shards[0]!.path))
    await runTool(tool, [first, target, plan.dtype.toUpperCase()], { env: process.env, signal, onLine })
    await readGguf(target)
    report(size)
  } catch (error) {
    await rm(target, { force: true })
    if (signal?.aborted) throw signal.reason
    if (!(error instanceof ToolError)) throw error
    const { cause, code, sentence } = classifyFailure(error)
    throw new CorralError(code, `The weights could not be quantized to ${plan.dtype}. ${sentence}`, {
      cause: error,
      details: { cause }
    })
  } finally {
    await rm(input, { recursive: true, force: true })
  }
}
