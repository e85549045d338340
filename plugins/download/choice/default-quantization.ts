import { formatMemory } from '../../../core/system/bytes.ts'
import type { GgufCandidate } from './gguf-offer.ts'
import { type Budget, requiredMemory } from './memory.ts'
import { isFloat, isForeign, quality, standInRank } from './quality.ts'

interface DefaultQuantization {
  candidate: GgufCandidate
  reason: string
}

/** Bytes of memory that a candidate needs with its projector. */
export const needOf = ({ size, projector }: GgufCandidate) => requiredMemory(size, projector?.size ?? 0)

/**
 * The best quantization that fits the memory, from the class of Q4_K_M up to Q8_0; smaller ones only where none of
 * these fits, weights that are not quantized only where there is nothing else. Undefined where no candidate has a label
 * that llama.cpp loads.
 */
export function defaultQuantization(
  candidates: readonly GgufCandidate[],
  budget: Budget
): DefaultQuantization | undefined {
  const usable = candidates.filter(({ quantization }) => quantization && !isForeign(quantization))
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
  if (!floor) return withoutLadder(ordered, budget)

  const fits = (candidate: GgufCandidate, bytes: number) => needOf(candidate) <= bytes
  const ladder = ordered.filter(candidate => rank(candidate) >= rank(floor) && rank(candidate) <= top)
  const best = ladder.findLast(candidate => fits(candidate, budget.best))
  if (best) return { candidate: best, reason: reasonOfBest(best, ladder[ladder.indexOf(best) + 1], budget) }
  if (fits(floor, budget.all)) {
    const reason =
      `${floor.label} needs ${formatMemory(needOf(floor))}, more than the ${formatMemory(budget.best)} of usable graphics memory; ` +
      'the rest of it goes to main memory.'
    return { candidate: floor, reason }
  }
  const smaller = ordered.filter(candidate => rank(candidate) < rank(floor))
  return bestSmaller(smaller, floor, budget) ?? { candidate: floor, reason: reasonOfMisfit(floor, budget) }
}

/** Where there is nothing from Q4_K_M to Q8_0. */
function withoutLadder(ordered: GgufCandidate[], budget: Budget): DefaultQuantization {
  const top = quality('Q8_0')
  const low = ordered.filter(candidate => quality(candidate.quantization!) < top)
  if (low.length > 0) {
    const best = low.findLast(candidate => needOf(candidate) <= budget.all)
    if (!best) return { candidate: low[0]!, reason: reasonOfMisfit(low[0]!, budget) }
    return { candidate: best, reason: reasonOfBest(best, low[low.indexOf(best) + 1], budget) }
  }
  const high = ordered[0]!
  const what = isFloat(high.quantization!) ? 'nothing quantized' : 'nothing smaller'
  return { candidate: high, reason: `${high.label} it is, because the repository has ${what}.` }
}

function bestSmaller(smaller: GgufCandidate[], floor: GgufCandidate, budget: Budget): DefaultQuantization | undefined {
  const best = smaller.findLast(candidate => needOf(candidate) <= budget.all)
  if (!best) return undefined
  return { candidate: best, reason: reasonOfBest(best, smaller[smaller.indexOf(best) + 1] ?? floor, budget) }
}

function reasonOfBest(
  best: GgufCandidate,
  next: GgufCandidate | undefined,
  { best: usable, gpu, all }: Budget
): string {
  const need = needOf(best)
  const memory =
    need <= usable
      ? `${formatMemory(usable)} of usable${gpu ? ' graphics' : ''} memory`
      : `${formatMemory(all)} of memory`
  const more = next ? `; ${next.label} would need ${formatMemory(needOf(next))}` : ''
  return `${best.label} is the best quantization for this machine: it needs ${formatMemory(need)} of ${memory}${more}.`
}

function reasonOfMisfit(candidate: GgufCandidate, { all }: Budget): string {
  return `${candidate.label} is taken although no quantization fits ${formatMemory(all)} of usable memory.`
}
