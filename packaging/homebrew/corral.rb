# Made by "npm run package:metadata" of package.json. A release gives it an address and a digest: docs/install.md#homebrew
class Corral < Formula
  desc "Local model server that finds, builds and runs llama.cpp"
  homepage "https://corral.invalid"
  url "https://corral.invalid/releases/download/v0.1.0/corral-0.1.0.tgz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "MIT"

  depends_on "cmake"
  depends_on "node"

  def install
    system "npm", "install", *std_npm_args
    bin.install_symlink libexec.glob("bin/*")
  end

  service do
    run [opt_bin/"corral", "serve"]
    keep_alive crashed: true
    environment_variables PATH: std_service_path_env
    log_path var/"log/corral.log"
    error_log_path var/"log/corral.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/corral --version")
  end
end
