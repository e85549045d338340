import { messageOf } from '../core/errors.ts'
import { parseModelName } from '../core/models/model-name.ts'
import { CommandFailure, EXIT } from './failure.ts'

/** Checks a model's name before anything is started for it. @throws CommandFailure with the sentence that says why not */
export function modelArgument(text: string): string {
  try {
    parseModelName(text)
  } catch (error) {
    throw new CommandFailure(EXIT.usage, messageOf(error), error)
  }
  return text
}
