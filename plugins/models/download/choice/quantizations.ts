import { formatBytes } from '../../../../core/system/bytes.ts'
import { type Budget, requiredMemory } from './choice.ts'
import type { GgufCandidate } from './gguf-models.ts'
import QUANTIZATIONS from './quantizations.json' with { type: 'json' }

export const requiredFor = ({ size, projector }: GgufCandidate) => requiredMemory(size, projector?.size ?? 0)

/**
 * Chooses the best quantization that fits the memory, from the class of Q4_K_M up to Q8_0. Chooses a smaller
 * quantization only if none of those fits, and unquantized weights only if there is nothing else. Undefined if no
 * candidate has a label that llama.cpp loads.
 */
export function defaultQuantization(
  candidates: readonly GgufCandidate[],
  budget: Budget
): { candidate: GgufCandidate; reason: string } | undefined {
  const usable = candidates.filter(({ quantization }) => quantization && !isUnsupported(quantization))
  const rank = (candidate: GgufCandidate) => quality(candidate.quantization!)
  const ordered = usable.sort((a, b) => rank(a) - rank(b) || (a.path < b.path ? -1 : 1))
  const [first] = ordered
  if (!first) return undefined

  const top = quality('Q8_0')
  const standIns = ordered
    .map(candidate => ({ candidate, order: standInRank(candidate.quantization!) }))
    .filter(entry => entry.order !== undefined)
    .sort((a, b) => a.order! - b.order!)
  const floor =
    standIns[0]?.candidate ?? ordered.find(candidate => rank(candidate) > quality('Q4_K_M') && rank(candidate) <= top)
  const below = floor ? rank(floor) : top
  const ladder = floor ? ordered.filter(candidate => rank(candidate) >= below && rank(candidate) <= top) : []
  const smaller = ordered.filter(candidate => rank(candidate) < below)
  if (!floor && smaller.length === 0) {
    const what = isFloat(first.quantization!) ? 'nothing quantized' : 'nothing smaller'
    return { candidate: first, reason: `${first.label} was chosen because the repository has ${what}.` }
  }

  const largest = (candidates: GgufCandidate[], bytes: number, larger?: GgufCandidate) => {
    const index = candidates.findLastIndex(candidate => requiredFor(candidate) <= bytes)
    if (index === -1) return undefined
    const candidate = candidates[index]!
    return { candidate, reason: reasonOfBest(candidate, candidates[index + 1] ?? larger, budget) }
  }
  const best = largest(ladder, budget.best)
  if (best) return best
  if (floor && requiredFor(floor) <= budget.all) {
    const reason =
      `${floor.label} needs ${formatBytes(requiredFor(floor))}, more than the ${formatBytes(budget.best)} of usable graphics memory; ` +
      'the rest goes to main memory.'
    return { candidate: floor, reason }
  }
  const small = largest(smaller, budget.all, floor)
  if (small) return small
  const candidate = floor ?? smaller[0]!
  const reason = `${candidate.label} was chosen although no quantization fits ${formatBytes(budget.all)} of usable memory.`
  return { candidate, reason }
}

function reasonOfBest(best: GgufCandidate, next: GgufCandidate | undefined, { best: usable, gpu, all }: Budget) {
  const need = requiredFor(best)
  const memory =
    need <= usable
      ? `${formatBytes(usable)} of usable${gpu ? ' graphics' : ''} memory`
      : `${formatBytes(all)} of memory`
  const more = next ? `; ${next.label} would need ${formatBytes(requiredFor(next))}` : ''
  return `${best.label} is the best quantization for this machine: it needs ${formatBytes(need)} of ${memory}${more}.`
}

/**
 * Quantizations by quality, the worst first, and the lowest quantization of the default choice: the first of these that
 * the repository has.
 */
const { quality: QUALITY, standIns: STAND_INS } = QUANTIZATIONS

/** Returns the quantization of most weights: `UD-Q4_K_XL` is Q4_K_XL, `F16-Q5` and `Q5-F16` are Q5. */
function mainQuantization(label: string): string {
  const parts = label.replace(/^UD-/, '').split('-')
  return parts.find(part => !isFloat(part)) ?? parts[0]!
}

const isFloat = (label: string): boolean => /^(?:B?F16|F32)$/.test(label)

/** Ranks a label by quality: higher is better. Unknown labels rank just below the known label they begin with. */
export function quality(label: string): number {
  const extra = (label.startsWith('UD-') ? 0.5 : 0) + (label.replace(/^UD-/, '').includes('-') ? 0.25 : 0)
  const bulk = mainQuantization(label)
  const rank = QUALITY.indexOf(bulk)
  if (rank >= 0) return rank + extra
  const shorter = bulk.replace(/_[^_]*$/, '')
  return shorter === bulk ? -1 : quality(shorter) + 0.1 + extra
}

/** Returns the position of a label in STAND_INS, the lower the better. Undefined for all others. */
export function standInRank(label: string): number | undefined {
  const exact = STAND_INS.indexOf(label)
  // A mixture ranks right after its plain quantization.
  const rank = exact >= 0 ? exact : STAND_INS.indexOf(mainQuantization(label)) + 0.5
  return rank >= 0.5 || exact === 0 ? rank : undefined
}

/** Types of other engines, and repacked types of old versions, which llama.cpp does not load. */
export const isUnsupported = (label: string): boolean => /_[48]_[48]$|_R[48]$|^(?:UD-)?IQ\d_K|^I2_S$/.test(label)
