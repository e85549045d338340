/*
 * Names of AMD's GPU architectures (https://llvm.org/docs/AMDGPUUsage.html#processors).
 */

/** A family of chips by its PCI device ids (libdrm's amdgpu.ids and the kernel's amdgpu_drv.c). */
export interface AmdChip {
  gfx: string
  /** Name of the chip, used if no product name is known. */
  name: string
  integrated: boolean
}

/** First id, last id, architecture, name; `i` marks integrated GPUs. Narrow ranges come first. */
const CHIPS: [number, number, string, string, 'i'?][] = [
  [0x1114, 0x1114, 'gfx1152', 'Krackan', 'i'],
  [0x13c0, 0x13c0, 'gfx1036', 'Granite Ridge', 'i'],
  [0x1435, 0x1435, 'gfx1033', 'Sephiroth', 'i'],
  [0x13fe, 0x13fe, 'gfx1013', 'Cyan Skillfish', 'i'],
  [0x1506, 0x1506, 'gfx1036', 'Mendocino', 'i'],
  [0x150e, 0x150e, 'gfx1150', 'Strix', 'i'],
  [0x1586, 0x1586, 'gfx1151', 'Strix Halo', 'i'],
  [0x15bf, 0x15bf, 'gfx1103', 'Phoenix', 'i'],
  [0x15c8, 0x15c8, 'gfx1103', 'Phoenix 2', 'i'],
  [0x15d8, 0x15d8, 'gfx902', 'Picasso', 'i'],
  [0x15dd, 0x15dd, 'gfx902', 'Raven', 'i'],
  [0x15e7, 0x15e7, 'gfx90c', 'Barcelo', 'i'],
  [0x1636, 0x1636, 'gfx90c', 'Renoir', 'i'],
  [0x1638, 0x1638, 'gfx90c', 'Cezanne', 'i'],
  [0x163f, 0x163f, 'gfx1033', 'Van Gogh', 'i'],
  [0x164c, 0x164c, 'gfx90c', 'Lucienne', 'i'],
  [0x164d, 0x164d, 'gfx1035', 'Rembrandt', 'i'],
  [0x164e, 0x164e, 'gfx1036', 'Raphael', 'i'],
  [0x1681, 0x1681, 'gfx1035', 'Rembrandt', 'i'],
  [0x1900, 0x1901, 'gfx1103', 'Hawk Point', 'i'],
  [0x66a0, 0x66af, 'gfx906', 'Vega 20'],
  [0x67a0, 0x67be, 'gfx701', 'Hawaii'],
  [0x67c0, 0x67df, 'gfx803', 'Polaris 10'],
  [0x67e0, 0x67ff, 'gfx803', 'Polaris 11'],
  [0x6860, 0x687f, 'gfx900', 'Vega 10'],
  [0x6980, 0x699f, 'gfx803', 'Polaris 12'],
  [0x69a0, 0x69af, 'gfx904', 'Vega 12'],
  [0x6fdf, 0x6fdf, 'gfx803', 'Polaris 20'],
  [0x7300, 0x730f, 'gfx803', 'Fiji'],
  [0x7310, 0x731f, 'gfx1010', 'Navi 10'],
  [0x7340, 0x734f, 'gfx1012', 'Navi 14'],
  [0x7360, 0x7362, 'gfx1011', 'Navi 12'],
  [0x7388, 0x7390, 'gfx908', 'Instinct MI100'],
  [0x73a0, 0x73bf, 'gfx1030', 'Navi 21'],
  [0x73c0, 0x73df, 'gfx1031', 'Navi 22'],
  [0x73e0, 0x73ff, 'gfx1032', 'Navi 23'],
  [0x7408, 0x7410, 'gfx90a', 'Instinct MI200'],
  [0x7420, 0x743f, 'gfx1034', 'Navi 24'],
  [0x7440, 0x745f, 'gfx1100', 'Navi 31'],
  [0x7460, 0x747f, 'gfx1101', 'Navi 32'],
  [0x7480, 0x749f, 'gfx1102', 'Navi 33'],
  [0x74a0, 0x74bd, 'gfx942', 'Instinct MI300'],
  [0x7550, 0x755f, 'gfx1201', 'Navi 48'],
  [0x7590, 0x759f, 'gfx1200', 'Navi 44'],
  [0x75a0, 0x75b3, 'gfx950', 'Instinct MI350']
]

/**
 * Finds a chip by its PCI id. Without an id, returns the chips of an architecture if all of them, or none, are
 * integrated.
 */
export function amdChip(pciId: string | undefined, gfx?: string): AmdChip | undefined {
  const id = Number.parseInt(pciId ?? '', 16)
  const chip = CHIPS.find(([first, last]) => id >= first && id <= last)
  if (chip) return { gfx: chip[2], name: `AMD ${chip[3]}`, integrated: chip[4] === 'i' }
  const alike = pciId === undefined ? CHIPS.filter(each => each[2] === gfx) : []
  const [first] = alike
  if (!first || alike.some(each => each[4] !== first[4])) return undefined
  const name = alike.length === 1 ? `AMD ${first[3]}` : `AMD GPU (${gfx})`
  return { gfx: first[2], name, integrated: first[4] === 'i' }
}

/** Extracts the bare name from `gfx906:sramecc+:xnack-` or `amdgcn-amd-amdhsa--gfx90a`. */
export function gfxName(text: string | undefined): string | undefined {
  return /\bgfx[1-9][0-9a-f]{2,4}\b/.exec(text ?? '')?.[0]
}

/**
 * Converts `gfx_target_version` of the kernel's topology: major × 10000 + minor × 100 + stepping. The name has minor
 * and stepping as one hexadecimal digit each, so 90010 is gfx90a.
 */
export function gfxFromTargetVersion(version: number): string | undefined {
  const [major, minor, step] = [Math.floor(version / 10_000), Math.floor(version / 100) % 100, version % 100]
  if (!Number.isInteger(version) || major < 6 || major > 99 || minor > 15 || step > 15) return undefined
  return `gfx${major}${minor.toString(16)}${step.toString(16)}`
}
