import type { Recommendation } from '../../../../core/contracts/native-records.ts'
import { type MemoryFacts, memoryBudget, requiredMemory, roomFor } from './choice.ts'
import LISTED from './recommended-models.json' with { type: 'json' }

/** Maximum shares of the fastest memory that small and medium models need. */
const MAX_SMALL = 0.25
const MAX_MEDIUM = 0.6

/**
 * Returns models that their publishers offer as GGUF files or for speech, and how large they are for this machine: the
 * largest that fits first, then the smallest that does not.
 */
export function recommendedModels(facts: MemoryFacts): Recommendation[] {
  const listed = LISTED as readonly Omit<Recommendation, 'memory' | 'size_class'>[]
  const models = listed.map((model): Recommendation => {
    const memory = roomFor(requiredMemory(model.size, 0), facts)
    const share = memory.required / memoryBudget(facts).best
    const fitting = share <= MAX_SMALL ? 'small' : share <= MAX_MEDIUM ? 'medium' : 'large'
    return { ...model, memory, size_class: memory.fits ? fitting : 'too_large' }
  })
  const order = ({ memory, size }: Recommendation) => (memory.fits ? -size : size)
  return models.sort((a, b) => Number(b.memory.fits) - Number(a.memory.fits) || order(a) - order(b))
}
