import { access, constants } from 'node:fs/promises'
import { arch, release, type } from 'node:os'
import { dirname } from 'node:path'
import type { RuntimesReport } from '../core/contracts/builds.ts'
import type { Hardware, HardwareProblem } from '../core/contracts/hardware.ts'
import { isSystemError, messageOf } from '../core/errors.ts'
import { freeSpace } from '../core/system/disk-space.ts'
import { version } from '../core/system/package-info.ts'
import type { DoctorReport } from './doctor-schema.ts'

/** A report before anything was looked at. */
export function emptyReport(): DoctorReport {
  return {
    corral: version,
    node: process.version,
    platform: `${type()} ${release()} ${arch()}`,
    config: { file: null, problems: [] },
    ranking: [],
    attempts: [],
    installed: [],
    problems: []
  }
}

/** The folder, or the nearest one above it that is there. */
async function existing(directory: string): Promise<string> {
  for (let path = directory; ; path = dirname(path)) {
    try {
      await access(path)
      return path
    } catch (error) {
      if (!isSystemError(error, 'ENOENT', 'ENOTDIR') || dirname(path) === path) throw error
    }
  }
}

/** @throws Error when nothing can be stored in the data directory, with what to do */
export async function checkWritable(directory: string): Promise<void> {
  try {
    await access(await existing(directory), constants.W_OK)
  } catch (error) {
    const advice = 'Make it writable, or choose another one with CORRAL_HOME.'
    throw new Error(`The data directory ${directory} cannot be written: ${messageOf(error)} ${advice}`, {
      cause: error
    })
  }
}

/** The models' folder and the free space of its disk; the folder need not be there yet. */
export async function diskAndModels(directory: string): Promise<NonNullable<DoctorReport['models']>> {
  return { directory, free: await freeSpace(await existing(directory)) }
}

/** What `runtimes` tells, as it goes into the report. Pure. */
export function engineFindings(report: RuntimesReport): Partial<DoctorReport> {
  const { state, hardware, ranking, release, chosen, attempts, installed } = report
  return { state, ranking, release, attempts, installed, ...(hardware && { hardware }), ...(chosen && { chosen }) }
}

/** Of these a person should know although corral works: a device is there and idle. */
const SERIOUS: readonly HardwareProblem['code'][] = [
  'driver_mismatch',
  'driver_not_loaded',
  'driver_too_old',
  'no_permission'
]

/** GPUs that could compute: not the console of a server, which no driver for computing knows. */
function computingGpus({ gpus }: Hardware): Hardware['gpus'] {
  return gpus.filter(({ vendor, apis }) => vendor !== 'other' || apis.length > 0)
}

/** What the findings have wrong with them, in sentences. Pure. */
export function findProblems({ state, hardware, ranking, chosen, attempts }: DoctorReport): string[] {
  const problems: string[] = []
  if (state === 'failed') {
    problems.push(
      `No llama.cpp build works here${attempts.length > 0 ? '; what was tried is listed with its reasons' : ''}.`
    )
  }
  for (const { code, message, advice } of hardware?.problems ?? []) {
    if (SERIOUS.includes(code)) problems.push(advice ? `${message} ${advice}` : message)
  }
  const gpus = hardware ? computingGpus(hardware) : []
  const best = ranking.find(({ usable }) => usable)
  if (gpus.length > 0 && best?.kind === 'cpu' && problems.length === 0 && gpus.some(gpu => gpu.vendor !== 'qualcomm')) {
    problems.push(
      `This machine has a GPU (${gpus.map(({ name }) => name).join(', ')}), but no kind of llama.cpp build can use it ` +
        'now: models run on the processor. The kinds below say what is missing.'
    )
  }
  problems.push(...(chosen?.warnings ?? []))
  if (chosen?.kind === 'cpu' && !chosen.warnings?.length && best && best.kind !== 'cpu') {
    problems.push(
      `Models run on the processor although ${best.title} could be used. The attempts below say why it was not taken.`
    )
  }
  return problems
}
