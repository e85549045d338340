import { CorralError } from '../../../core/errors.ts'

/** An action of Go's templates that is no expression of Jinja's: about a field, a variable, or a statement. */
const GO_ACTION =
  /\{\{-?\s*(?:\.[A-Za-z\s}-]|\$|(?:if|range|with|else if)\s|(?:end|else)\s*-?\}\}|(?:block|define|template)\s+")/
const JINJA_MESSAGES = /\{[{%][\s\S]*?\bmessages\b[\s\S]*?[%}]\}/

/**
 * Checks that a chat template is one that llama.cpp understands.
 * @throws CorralError `unsupported_capability` for one in Go's language, which Ollama uses; `invalid_request` for what is
 * no chat template
 */
export function requireJinja(template: string): void {
  if (GO_ACTION.test(template)) {
    throw new CorralError(
      'unsupported_capability',
      'The template is in the language of Go, which llama.cpp does not understand. Leave it out, and the chat template ' +
        "in the model's own file is used, or send one in Jinja.",
      { param: 'template' }
    )
  }
  if (JINJA_MESSAGES.test(template)) return
  throw new CorralError(
    'invalid_request',
    'The template is no chat template in Jinja: it does nothing with "messages". Leave it out, and the one in the ' +
      "model's own file is used.",
    { param: 'template' }
  )
}
