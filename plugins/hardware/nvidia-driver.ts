import { defined, type Findings, ProbeFailure, type Sighting } from './findings.ts'
import { pciAddress } from './pci.ts'
import type { Probe } from './probe.ts'

/** The version of the loaded kernel driver, from /proc/driver/nvidia/version. */
export function parseDriverVersion(text: string): string | undefined {
  return /Kernel Module\b.*?\s(\d{3,4}(?:\.\d{1,4}){1,2})\b/.exec(text)?.[1]
}

/** Parses /proc/driver/nvidia/gpus/<bus>/information. */
export function parseDriverCard(text: string): { name?: string; pciBus?: string } {
  const field = (key: string) => new RegExp(`^${key}:[ \\t]*(\\S.*?)\\s*$`, 'm').exec(text)?.[1]
  const model = field('Model')
  return defined({ name: model === 'Unknown' ? undefined : model, pciBus: pciAddress(field('Bus Location')) })
}

/** The files of NVIDIA's kernel driver, which are there even if nvidia-smi is missing or broken. */
export const nvidiaDriver: Probe = {
  name: 'nvidia-driver',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const text = await files.text('/proc/driver/nvidia/version')
    if (text === undefined) throw new ProbeFailure('absent', 'there is no /proc/driver/nvidia/version')
    const version = parseDriverVersion(text)
    const gpus: Sighting[] = []
    for (const bus of await files.names('/proc/driver/nvidia/gpus')) {
      const card = parseDriverCard((await files.text(`/proc/driver/nvidia/gpus/${bus}/information`)) ?? '')
      gpus.push({
        vendor: 'nvidia',
        ...defined({ pciBus: pciAddress(bus) }),
        ...card,
        driver: defined({ name: 'nvidia', version }),
        api: 'cuda',
        usable: true
      })
    }
    if (version === undefined)
      throw new ProbeFailure('unreadable', 'no version in /proc/driver/nvidia/version', { gpus })
    return { gpus, detail: `driver ${version}` }
  }
}

/*
 * Compute capabilities (https://developer.nvidia.com/cuda-gpus and /cuda-legacy-gpus), for cards without a driver and
 * for drivers too old to report them.
 */

/** Name → capability; the first match counts. */
const BY_NAME: [RegExp, string][] = [
  [/\bGB10\b|DGX Spark/i, '12.1'],
  [/\bG?B300\b/i, '10.3'],
  [/\bG?B[12]00\b/i, '10.0'],
  [/\bThor\b/i, '11.0'],
  [/\bOrin\b/i, '8.7'],
  [/\bXavier\b/i, '7.2'],
  [/RTX PRO \d+.*Blackwell|RTX 50[5-9]0/i, '12.0'],
  [/\bGH200\b|\bH[128]00\b|\bH20\b/i, '9.0'],
  [/\bL(4|20|40S?|2)\b|RTX \d{4} (SFF )?Ada|RTX 40[5-9]0/i, '8.9'],
  [/\bA(2|10[GM]?|16|40)\b|RTX A\d{4}|RTX 30[5-9]0|RTX 2050|MX570/i, '8.6'],
  [/\bA(30|100|800)\b|CMP 170HX/i, '8.0'],
  [/RTX 20[678]0|GTX 16[3-6]0|TITAN RTX|Quadro RTX|\bT(4|4G|[1-9]00|1[02]00)\b|MX450|MX550|CMP [345]0HX/i, '7.5'],
  [/TITAN V\b|\bG?V100|Quadro GV100/i, '7.0'],
  [/\bP100\b|GP100/i, '6.0'],
  [/GTX 10[1-8]0|GT 10[13]0|TITAN Xp?\b(?!.*Maxwell)|\bP(4|6|40|[1-6]0{2,3})\b|MX(1[135]0|[23][1-5]0)/i, '6.1'],
  [/GTX 9[5-8]0|TITAN X\b|\bM(4|6|40|60|[2-6]000)\b/i, '5.2'],
  [/GTX 750|GTX 745|9[34]0M|\bM10\b|Quadro K[126]20/i, '5.0'],
  [/\bK80\b/i, '3.7']
]

/** First and last PCI device id → capability, by the chips' ranges in https://pci-ids.ucw.cz. */
const BY_ID: [number, number, string][] = [
  [0x1340, 0x13bf, '5.0'],
  [0x13c0, 0x1436, '5.2'],
  [0x15f0, 0x15ff, '6.0'],
  [0x1617, 0x17ff, '5.2'],
  [0x1b00, 0x1d56, '6.1'],
  [0x1d81, 0x1df6, '7.0'],
  [0x1e02, 0x1fff, '7.5'],
  [0x2080, 0x20ff, '8.0'],
  [0x2182, 0x21d1, '7.5'],
  [0x2200, 0x22bf, '8.6'],
  [0x2300, 0x23ff, '9.0'],
  [0x2414, 0x25ff, '8.6'],
  [0x2681, 0x28ff, '8.9'],
  [0x2901, 0x29ff, '10.0'],
  [0x2b85, 0x2dff, '12.0'],
  [0x2e12, 0x2e12, '12.1'],
  [0x2f04, 0x2f80, '12.0'],
  [0x3182, 0x31ff, '10.3']
]

export function capabilityOfName(name: string): string | undefined {
  return BY_NAME.find(([pattern]) => pattern.test(name))?.[1]
}

export function capabilityOfId(id: string): string | undefined {
  const number = Number.parseInt(id, 16)
  return BY_ID.find(([first, last]) => number >= first && number <= last)?.[2]
}

/** First driver of a branch : highest CUDA version that it supports (CUDA's release notes, table 3). */
const CUDA_OF_DRIVER =
  '610:13.3 595:13.2 590:13.1 580:13.0 575:12.9 570:12.8 565:12.7 560:12.6 555:12.5 550:12.4 545:12.3 535:12.2 ' +
  '530:12.1 525:12.0 520:11.8 515:11.7 510:11.6 495:11.5 470:11.4 460:11.2 450:11.0 440:10.2 418:10.1 410:10.0'

/** Highest CUDA version that a driver such as `580.95.05` supports; undefined for very old drivers. */
export function cudaOfDriver(version: string): string | undefined {
  const branch = Number.parseInt(version, 10)
  const row = CUDA_OF_DRIVER.split(' ').find(row => branch >= Number.parseInt(row, 10))
  return row?.split(':')[1]
}
