import { GGUF_OTHERS } from './gguf-others.ts'
import { GGUF_PUBLISHERS } from './gguf-publishers.ts'
import type { Expectation } from './listing.ts'
import { WITHOUT_GGUF } from './without-gguf.ts'

/** Repositories as they are (names of files; sizes about right). */
export const LISTINGS: Expectation[] = [...GGUF_PUBLISHERS, ...GGUF_OTHERS, ...WITHOUT_GGUF]
