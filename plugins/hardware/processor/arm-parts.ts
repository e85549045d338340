/** Implementer and part numbers of ARM processors, as /proc/cpuinfo has them instead of a name. */
const PARTS: Record<string, Record<string, string>> = {
  '0x41': {
    '0xd03': 'Cortex-A53',
    '0xd05': 'Cortex-A55',
    '0xd07': 'Cortex-A57',
    '0xd08': 'Cortex-A72',
    '0xd0b': 'Cortex-A76',
    '0xd0c': 'Neoverse N1',
    '0xd40': 'Neoverse V1',
    '0xd42': 'Cortex-A78AE',
    '0xd46': 'Cortex-A510',
    '0xd48': 'Cortex-X2',
    '0xd49': 'Neoverse N2',
    '0xd4f': 'Neoverse V2',
    '0xd81': 'Cortex-A720',
    '0xd82': 'Cortex-X4',
    '0xd84': 'Neoverse V3',
    '0xd85': 'Cortex-X925',
    '0xd87': 'Cortex-A725',
    '0xd8e': 'Neoverse N3'
  },
  '0x4e': { '0x004': 'NVIDIA Carmel' },
  '0x51': { '0x001': 'Qualcomm Oryon' },
  '0xc0': { '0xac3': 'Ampere-1', '0xac4': 'Ampere-1A' }
}

const IMPLEMENTERS: Record<string, string> = {
  '0x41': 'ARM',
  '0x48': 'HiSilicon',
  '0x4e': 'NVIDIA',
  '0x51': 'Qualcomm',
  '0x61': 'Apple',
  '0xc0': 'Ampere'
}

/** A name for people; undefined where neither number is known. */
export function armProcessorName(implementer: string | undefined, part: string | undefined): string | undefined {
  if (implementer === undefined) return undefined
  const maker = IMPLEMENTERS[implementer.toLowerCase()]
  const name = PARTS[implementer.toLowerCase()]?.[part?.toLowerCase() ?? '']
  return name ?? (maker === undefined ? undefined : `${maker} processor`)
}
