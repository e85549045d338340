import type { Recommendation } from '../../../../core/contracts/native-records.ts'
import { type MemoryFacts, requiredMemory, roomFor } from './choice.ts'
import LISTED from './recommended-models.json' with { type: 'json' }

/** Returns models that their publishers offer as GGUF files or for speech, and whether they fit the memory. */
export function recommendedModels(memory: MemoryFacts): Recommendation[] {
  const listed = LISTED as readonly Omit<Recommendation, 'memory'>[]
  return listed.map(model => ({ ...model, memory: roomFor(requiredMemory(model.size, 0), memory) }))
}
