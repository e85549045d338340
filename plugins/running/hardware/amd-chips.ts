import CHIPS from './amd-chips.json' with { type: 'json' }
import { isInRange } from './pci.ts'

/*
 * AMD's GPU architectures (https://llvm.org/docs/AMDGPUUsage.html#processors). `amd-chips.json` has the families of chips
 * with their PCI device ids (libdrm's amdgpu.ids, the kernel's amdgpu_drv.c). Their names are used without a product name.
 */

/** Finds a chip by its PCI id, or the chips of an architecture if they are all integrated or all not. */
export function amdChip(pciId: string | undefined, gfx?: string) {
  const chip = pciId && CHIPS.find(({ ids }) => isInRange(pciId, ids))
  if (chip) return { gfx: chip.gfx, name: `AMD ${chip.name}`, integrated: chip.integrated === true }
  const alike = pciId === undefined ? CHIPS.filter(each => each.gfx === gfx) : []
  const [first] = alike
  if (!first || alike.some(each => each.integrated !== first.integrated)) return undefined
  const name = alike.length === 1 ? `AMD ${first.name}` : `AMD GPU (${gfx})`
  return { gfx: first.gfx, name, integrated: first.integrated === true }
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
