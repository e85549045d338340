import type { HardwareProblem } from '../../../core/contracts/hardware.ts'
import { type Findings, known, type Sighting } from '../findings.ts'
import type { Machine, Printed } from '../machine.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import { parseSmiCsv, parseSmiList, parseSmiTable, parseSmiVersions, type SmiGpu } from './smi-output.ts'
import { type Surroundings, smiProblem } from './smi-problem.ts'

const BASIC = 'index,name,uuid,pci.bus_id,pci.device_id,driver_version,memory.total,memory.free'
/** Drivers before 510 refuse the whole query for these. */
const NEWER = 'compute_cap,mig.mode.current'
const GIB = 2 ** 30

const query = (fields: string) => [`--query-gpu=${fields}`, '--format=csv']

/** What was printed for all the questions; the versions and the list may be missing. */
export interface SmiAnswers {
  gpus: readonly SmiGpu[]
  versions: { driver?: string; cuda?: string }
  /** By index, GiB; undefined where `-L` did not tell. */
  instances?: ReadonlyMap<number, readonly number[]>
}

/** What is the matter with a partitioned GPU, and what of it programs can use; CUDA takes one instance only. */
function partition(
  gpu: SmiGpu,
  subject: string,
  sizes: readonly number[] | undefined
): { problem: HardwareProblem; sighting: Partial<Sighting> } {
  if (sizes?.length === 0) {
    return {
      sighting: { usable: false },
      problem: {
        code: 'partitioned',
        subject,
        message: `${gpu.name} is set to be partitioned (MIG) but has no instances, so that CUDA sees no device.`,
        advice: `Make instances ("sudo nvidia-smi mig -cgi 0 -C"), or switch it off ("sudo nvidia-smi -i ${gpu.index} -mig 0").`
      }
    }
  }
  const size = sizes?.[0] === undefined ? undefined : Math.min(sizes[0] * GIB, gpu.totalMemory ?? sizes[0] * GIB)
  return {
    // What is free of the whole card says nothing about one instance.
    sighting: known({ usable: true, totalMemory: size }),
    problem: {
      code: 'partitioned',
      subject,
      message:
        `${gpu.name} is partitioned (MIG): a model gets one instance` +
        `${sizes === undefined ? '' : ` of ${sizes.length}, of ${sizes[0]} GiB`}, not the whole card.`,
      advice:
        `Choose an instance with CUDA_VISIBLE_DEVICES=MIG-… ("nvidia-smi -L" lists them), or switch partitioning off ` +
        `("sudo nvidia-smi -i ${gpu.index} -mig 0").`
    }
  }
}

/** Findings from what nvidia-smi answered. */
export function smiFindings({ gpus, versions, instances }: SmiAnswers): Findings {
  const problems: HardwareProblem[] = []
  const sightings = [...gpus]
    .sort((a, b) => a.index - b.index)
    .map((gpu, at): Sighting => {
      const version = gpu.driver ?? versions.driver
      const partitioned = gpu.mig === true ? partition(gpu, `nvidia:${at}`, instances?.get(gpu.index)) : undefined
      if (partitioned) problems.push(partitioned.problem)
      const memory = { totalMemory: gpu.totalMemory, freeMemory: gpu.freeMemory }
      return {
        vendor: 'nvidia',
        name: gpu.name,
        ...known({
          pciBus: gpu.pciBus,
          pciId: gpu.pciId,
          architecture: gpu.capability,
          type: gpu.unified ? ('integrated' as const) : undefined
        }),
        unifiedMemory: gpu.unified,
        driver: known({ name: 'nvidia', version, cuda: versions.cuda }),
        api: 'cuda',
        usable: true,
        ...(partitioned ? partitioned.sighting : known(memory))
      }
    })
  const { driver, cuda } = { ...versions, ...sightings[0]?.driver }
  const detail = driver === undefined ? undefined : `driver ${driver}${cuda === undefined ? '' : `, CUDA ${cuda}`}`
  return { gpus: sightings, problems, ...known({ detail }) }
}

async function surroundings({ platform, files }: Machine): Promise<Surroundings> {
  if (platform === 'win32') return 'win32'
  const kernel = (await files.text('/proc/version')) ?? (await files.text('/proc/sys/kernel/osrelease')) ?? ''
  return /microsoft/i.test(kernel) ? 'wsl' : 'linux'
}

/** What a question that is not needed gives; its failure is no failure of the whole. */
async function orNothing(answer: Promise<Printed>): Promise<string> {
  try {
    return (await answer).text
  } catch (error) {
    if (error instanceof ProbeFailure) return ''
    throw error
  }
}

/** NVIDIA's own tool: queries first; its table, which cuts names short, where those give nothing. */
export const nvidiaSmi: Probe = {
  name: 'nvidia-smi',
  platforms: ['linux', 'win32'],
  async find(machine) {
    const ask = (...args: string[]) => machine.run('nvidia-smi', args)
    const wholeQuery = ask(...query(`${BASIC},${NEWER}`))
    const [full, version] = await Promise.all([wholeQuery, orNothing(ask('--version'))])
    let texts = `${full.text}\n${version}`
    let gpus = parseSmiCsv(full.stdout) ?? []
    if (gpus.length === 0 && /not a valid field/i.test(full.text)) {
      gpus = parseSmiCsv(await orNothing(ask(...query(BASIC)))) ?? []
    }
    let versions = parseSmiVersions(texts)
    if (gpus.length === 0 || versions.cuda === undefined) {
      const table = await orNothing(ask())
      texts += `\n${table}`
      if (gpus.length === 0) gpus = parseSmiTable(texts)
      versions = { ...parseSmiVersions(table), ...versions }
    }
    const problem = smiProblem(texts, await surroundings(machine))
    if (gpus.length === 0) {
      const findings = { problems: problem ? [problem] : [] }
      // It works, and says that there is no card.
      if (problem?.code === 'no_device') return { ...findings, detail: problem.message }
      if (problem) throw new ProbeFailure('failed', problem.message, findings)
      const what = full.failure ?? 'nvidia-smi printed nothing that is known'
      throw new ProbeFailure(full.failure === undefined ? 'unreadable' : 'failed', `${what} ${full.text.trim()}`)
    }
    const list = gpus.some(gpu => gpu.mig) ? parseSmiList(await orNothing(ask('-L'))) : undefined
    const findings = smiFindings({ gpus, versions, ...(list && list.size > 0 ? { instances: list } : {}) })
    return { ...findings, problems: [...(findings.problems ?? []), ...(problem ? [problem] : [])] }
  }
}

/** Total and free memory of the GPUs now; undefined where nvidia-smi does not tell. */
export async function nvidiaMemory(machine: Machine): Promise<SmiGpu[] | undefined> {
  const { stdout } = await machine.run('nvidia-smi', query('index,name,pci.bus_id,memory.total,memory.free'))
  return parseSmiCsv(stdout)
}
