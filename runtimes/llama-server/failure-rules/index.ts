import { BUILD_RULES } from './build-rules.ts'
import { CALL_RULES } from './call-rules.ts'
import { FILE_RULES } from './file-rules.ts'
import { LEFTOVER_RULES } from './leftover-rules.ts'
import { MEMORY_RULES } from './memory-rules.ts'
import type { FailureRule } from './rule.ts'

/** Of several rules that know a line the first one counts. */
export const FAILURE_RULES: readonly FailureRule[] = [
  ...CALL_RULES,
  ...FILE_RULES,
  ...MEMORY_RULES,
  ...BUILD_RULES,
  ...LEFTOVER_RULES
]
