import { InvalidArgumentError } from 'commander'
import { messageOf } from '../errors.ts'
import { parseModelName } from '../model-name.ts'

/** Checks a model's name before anything is started for it. @throws InvalidArgumentError, which commander reports */
export function modelArgument(text: string): string {
  try {
    parseModelName(text)
  } catch (error) {
    throw new InvalidArgumentError(messageOf(error))
  }
  return text
}
