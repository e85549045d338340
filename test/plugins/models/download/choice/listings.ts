import { GGUF_OTHERS } from './gguf-others.ts'
import { GGUF_PUBLISHERS } from './gguf-publishers.ts'
import type { Expectation } from './listing.ts'
import { WITHOUT_GGUF } from './without-gguf.ts'

/** Real repositories (file names, approximate sizes). */
export const LISTINGS: Expectation[] = [...GGUF_PUBLISHERS, ...GGUF_OTHERS, ...WITHOUT_GGUF]
