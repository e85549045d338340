/** Tests of llama.cpp that corral fails on purpose, or that cannot hold for it, by the beginning of their names. */
export const EXPLAINED: readonly { tests: RegExp; reason: string }[] = [
  {
    tests: /^unit\/test_basic\.py::test_server_multiple_addresses/,
    reason: '`host` is one address; `api-ollama.listen` and a proxy give further ones'
  },
  {
    tests: /^unit\/test_basic\.py::test_server_props/,
    reason: '`GET /props` without a model is what a router says, and paths of files are told to nobody'
  },
  {
    tests: /^unit\/test_basic\.py::test_server_models/,
    reason: 'aliases have rows of their own in lists of models, since clients offer what they find there'
  },
  {
    tests: /^unit\/test_basic\.py::test_server_model_aliases_and_tags/,
    reason: 'aliases have rows of their own in lists of models; there are no tags'
  },
  {
    tests: /^unit\/test_basic\.py::test_server_slots/,
    reason: '`GET /slots` cannot be switched off; it never tells what is asked in them'
  }
]
